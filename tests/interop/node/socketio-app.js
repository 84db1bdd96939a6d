// The socket.io app: notes each message, acknowledges it, and numbers what it sends. Usage: node socketio-app.js --pod NAME
'use strict';

const http = require('node:http');
const { Server } = require('socket.io');
const { Journal, chunk, podName } = require('./wire');

const pod = podName();
const journal = new Journal();
const server = http.createServer();
const sessions = new Server(server, { perMessageDeflate: true });
sessions.on('connection', (socket) => {
  let seq = 0;
  const push = () => {
    seq += 1;
    socket.emit('chunk', chunk(seq, pod));
  };
  journal.begin();
  push();
  const timer = setInterval(push, 100);
  socket.on('message', (id, acknowledge) => {
    journal.message(id);
    acknowledge();
  });
  socket.on('disconnect', (reason) => {
    clearInterval(timer);
    journal.end(reason);
  });
});

/** A poller has no socket to look at. */
const isOpen = ({ conn: { transport } }) => transport.name !== 'websocket' || transport.socket.readyState === 1;
journal.serve(server, () => [...sessions.sockets.sockets.values()].filter(isOpen).length);
