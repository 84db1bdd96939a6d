// The WebSocket app: numbers what it sends on each session and notes what comes. Usage: node ws-app.js --pod NAME
'use strict';

const http = require('node:http');
const { WebSocket, WebSocketServer } = require('ws');
const { Journal, chunk, podName } = require('./wire');

const pod = podName();
const journal = new Journal();
const server = http.createServer((_, response) => response.writeHead(426).end());
const sessions = new WebSocketServer({ server, perMessageDeflate: true });
sessions.on('connection', (socket, request) => {
  let seq = 0;
  const push = () => {
    seq += 1;
    socket.send(chunk(seq, pod));
  };
  journal.begin();
  push();
  const timer = setInterval(push, Number(new URL(request.url, 'http://app').searchParams.get('every')));
  socket.on('message', (bytes) => journal.chunk(bytes));
  socket.on('error', () => {});
  socket.on('close', (code) => {
    clearInterval(timer);
    journal.end(code);
  });
});
journal.serve(server, () => [...sessions.clients].filter((socket) => socket.readyState === WebSocket.OPEN).length);
