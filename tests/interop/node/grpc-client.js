// The grpc-js client: unary calls, server streams and bidi streams until standard input ends.
// Usage: node grpc-client.js ADDRESS; NODE_PATH says where the packages are.
'use strict';

const path = require('node:path');
const grpc = require('@grpc/grpc-js');
const loader = require('@grpc/proto-loader');
const { Report, Stream, sleep } = require('./wire');

const CHANNELS = 2;
const TASKS = 4;
const PACE = 20;
const BIDI_INTERVAL = 50;

const definition = loader.loadSync(path.join(__dirname, 'echo.proto'));
const { Echo } = grpc.loadPackageDefinition(definition).interop;
const report = new Report('grpc-js');
const open = new Set();

function call(client, id) {
  return new Promise((resolve) => {
    client.Unary({ data: Buffer.from(id) }, { deadline: Date.now() + 10000 }, (error, answer) => {
      if (error) resolve(error);
      else if (answer.data.toString().endsWith(` ${id}`)) resolve(null);
      else resolve({ code: grpc.status.DATA_LOSS, message: 'not the answer to this call' });
    });
  });
}

async function unaryTask(client, number) {
  const first = report.awaited();
  for (let count = 0; !report.stopped; count += 1) {
    const error = await call(client, `js-${number}-${count}`);
    if (error) {
      report.fail(error.code, error.message);
    } else {
      report.told.ok += 1;
    }
    first();
    await sleep(PACE);
  }
}

/** Lives through one stream and resolves with how it ended. */
function stream(client, kind, first) {
  return new Promise((resolve) => {
    const lived = new Stream(kind);
    const call = kind === 'server' ? client.Server({ data: Buffer.from('go') }) : client.Bidi();
    let timer;
    open.add(call);
    if (kind === 'bidi') {
      let seq = 0;
      timer = setInterval(() => {
        seq += 1;
        call.write({ data: Buffer.from(String(seq)) });
      }, BIDI_INTERVAL);
    }
    call.on('data', (message) => {
      lived.chunk(message.data);
      first();
    });
    // The status event tells the same, and comes also where there is no error.
    call.on('error', () => {});
    call.on('status', ({ code, details }) => {
      clearInterval(timer);
      open.delete(call);
      resolve(lived.end({ code, message: details }, report.stopped));
    });
  });
}

async function streamTask(client, kind) {
  const first = report.awaited();
  while (!report.stopped) {
    report.told.streams.push(await stream(client, kind, first));
    // A client that comes back at once would hammer a service that is down.
    await sleep(100);
  }
}

const tasks = [];
for (let channel = 0; channel < CHANNELS; channel += 1) {
  const client = new Echo(process.argv[2], grpc.credentials.createInsecure(), {
    'grpc.enable_retries': 0,
    'grpc.use_local_subchannel_pool': 1,
    'grpc.enable_http_proxy': 0,
  });
  for (let number = 0; number < TASKS / CHANNELS; number += 1) {
    tasks.push(unaryTask(client, channel * TASKS + number), streamTask(client, 'server'), streamTask(client, 'bidi'));
  }
}
report.run(tasks, () => {
  for (const call of open) call.cancel();
});
