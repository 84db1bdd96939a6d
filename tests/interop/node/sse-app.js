// The app of event streams. The events are the same in every pod: one each 50 ms of the wall clock, numbered by it, so that
// a client can go on at another pod where it stopped at this one. Usage: node sse-app.js --pod NAME
'use strict';

const http = require('node:http');
const { Journal, podName } = require('./wire');

const INTERVAL = 50;
const pod = podName();
const journal = new Journal();
const latest = () => Math.floor(Date.now() / INTERVAL);

const server = http.createServer((request, response) => {
  journal.begin();
  journal.told.calls += 1;
  response.writeHead(200, { 'content-type': 'text/event-stream', 'cache-control': 'no-cache' });
  response.write(`retry: 200\nevent: hello\ndata: ${pod}\n\n`);
  let sent = Number(request.headers['last-event-id']) || latest();
  const push = () => {
    for (; sent < latest(); sent += 1) response.write(`id: ${sent + 1}\ndata: event ${sent + 1}\ndata: from ${pod}\n\n`);
  };
  // A stream may also be silent for ever.
  const timer = request.url === '/silent' ? undefined : setInterval(push, INTERVAL / 2);
  response.on('close', () => {
    clearInterval(timer);
    journal.end('closed');
  });
});
journal.serve(server);
