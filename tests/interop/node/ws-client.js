// The WebSocket client of Node's ws: long sessions, every fifth with permessage-deflate, messages numbered both ways.
// Usage: node ws-client.js ADDRESS SESSIONS MILLISECONDS-BETWEEN-MESSAGES
'use strict';

const { WebSocket } = require('ws');
const { Report, Stream, chunk, sleep } = require('./wire');

const [target, sessions, every] = [process.argv[2], Number(process.argv[3]), Number(process.argv[4])];
const report = new Report('ws');
const open = new Set();

/** Lives through one session; resolves with null if there was none. */
function session(name, compressed, first) {
  return new Promise((resolve) => {
    const socket = new WebSocket(`ws://${target}/?every=${every}`, { perMessageDeflate: compressed, handshakeTimeout: 10000 });
    const lived = new Stream('session');
    let failure = '';
    let seq = 0;
    let timer;
    socket.on('open', () => {
      open.add(socket);
      if (report.stopped) socket.close(1000);
      timer = setInterval(() => {
        if (socket.readyState !== WebSocket.OPEN) return;
        seq += 1;
        report.sent(`${name}-${seq}`);
        socket.send(chunk(seq, name));
      }, every);
    });
    socket.on('message', (bytes) => {
      lived.chunk(bytes);
      first();
    });
    socket.on('error', (error) => {
      failure = error.message;
    });
    socket.addEventListener('close', ({ code, reason, wasClean }) => {
      clearInterval(timer);
      if (open.delete(socket)) resolve(lived.end({ code, message: failure || reason, clean: wasClean }, report.stopped));
      else {
        report.fail('connect', failure);
        resolve(null);
      }
    });
  });
}

async function task(number) {
  const first = report.awaited();
  // Timers that go off at the same moment would make a load of their own.
  await sleep((number * every) / sessions);
  for (let round = 0; !report.stopped; round += 1) {
    const ended = await session(`ws-${number}-${round}`, number % 5 === 0, first);
    if (ended) report.told.streams.push(ended);
    // A client that comes back at once would hammer a service that is down.
    await sleep(100);
  }
}

report.run(Array.from({ length: sessions }, (_, number) => task(number)), () => {
  for (const socket of open) socket.close(1000);
});
