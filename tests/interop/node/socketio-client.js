// The socket.io client: sessions that reconnect by themselves, and messages that are emitted until they are acknowledged.
// Usage: node socketio-client.js ADDRESS SESSIONS TRANSPORT,TRANSPORT
'use strict';

const http = require('node:http');
const { io } = require('socket.io-client');
const { Report, Stream, sleep } = require('./wire');

const [target, sessions, transports] = [process.argv[2], Number(process.argv[3]), process.argv[4].split(',')];
const report = new Report('socket.io');
const open = new Set();

async function task(number) {
  const first = report.awaited();
  const socket = io(`http://${target}`, {
    transports,
    forceNew: true,
    reconnectionDelay: 100,
    reconnectionDelayMax: 500,
    perMessageDeflate: {},
    // An address of its own, by which a Service with session affinity knows a client: polling needs that. On a connection
    // kept from before, a new session would begin at the pod that leaves, and the next poll come to one that has not
    // heard of it: the client gets over that by itself, but what is looked at here would be another thing.
    agent: new http.Agent({ keepAlive: false, localAddress: `127.0.1.${number + 1}` }),
  });
  let lived;
  open.add(socket);
  socket.on('connect', () => {
    lived = new Stream('session');
  });
  socket.on('chunk', (bytes) => lived.chunk(bytes));
  socket.on('disconnect', (reason, details) => {
    const code = details?.context?.code ?? 0;
    report.told.streams.push(lived.end({ code, message: reason, transport: socket.io.engine.transport.name }, report.stopped));
  });
  socket.on('connect_error', ({ message, description }) => {
    report.fail('connect', `${message}: ${description?.message ?? description}`);
  });
  for (let seq = 1; !report.stopped; seq += 1) {
    const id = `io-${number}-${seq}`;
    while (!report.stopped) {
      try {
        await socket.timeout(5000).emitWithAck('message', id);
        report.sent(id);
        first();
        break;
      } catch {
        // Not acknowledged, so perhaps not arrived: again, on the next connection.
        report.told.repeated = (report.told.repeated ?? 0) + 1;
      }
    }
    await sleep(50);
  }
}

report.run(Array.from({ length: sessions }, (_, number) => task(number)), () => {
  for (const socket of open) socket.disconnect();
});
