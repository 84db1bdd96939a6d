// The grpc-js client: unary calls, server streams and bidi streams until standard input ends.
// Usage: node client.js ADDRESS; NODE_PATH says where the packages are.
'use strict';

const path = require('node:path');
const grpc = require('@grpc/grpc-js');
const loader = require('@grpc/proto-loader');

const CHANNELS = 2;
const TASKS = 4;
const CHUNK = 3072;
const PACE = 20;
const BIDI_INTERVAL = 50;

const definition = loader.loadSync(path.join(__dirname, 'echo.proto'));
const { Echo } = grpc.loadPackageDefinition(definition).interop;
const report = { client: 'grpc-js', ok: 0, failed: 0, codes: {}, errors: [], streams: [] };
const open = new Set();
let stopped = false;
let waiting = 0;

const sleep = (millis) => new Promise((resolve) => setTimeout(resolve, millis));
const say = (fields) => process.stdout.write(`${JSON.stringify(fields)}\n`);

/** Returns what a task calls with its first answer; the last of them makes the client ready. */
function awaited() {
  waiting += 1;
  let done = false;
  return () => {
    if (done) return;
    done = true;
    waiting -= 1;
    if (waiting === 0) say({ event: 'ready' });
  };
}

/** The sequence number and the pod of a chunk, or null if a byte is missing or wrong. */
function check(chunk) {
  const [seq, pod] = chunk.subarray(0, 64).toString('latin1').split(' ', 2);
  const number = Number(seq);
  if (chunk.length !== CHUNK || !Number.isInteger(number)) return null;
  for (let at = seq.length + pod.length + 2; at < CHUNK; at += 1) {
    if (chunk[at] !== 97 + ((number + at) % 26)) return null;
  }
  return { seq: number, pod };
}

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
  const first = awaited();
  for (let count = 0; !stopped; count += 1) {
    const error = await call(client, `js-${number}-${count}`);
    if (error) {
      report.failed += 1;
      report.codes[error.code] = (report.codes[error.code] ?? 0) + 1;
      if (report.errors.length < 5) report.errors.push(error.message);
    } else {
      report.ok += 1;
    }
    first();
    await sleep(PACE);
  }
}

/** Lives through one stream and resolves with how it ended. */
function stream(client, kind, first) {
  return new Promise((resolve) => {
    const told = { kind, pod: '', code: 0, message: '', messages: 0, contiguous: true, whole: true };
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
      const checked = check(message.data);
      told.messages += 1;
      told.whole = told.whole && checked !== null;
      told.contiguous = told.contiguous && checked?.seq === told.messages;
      told.pod = checked?.pod ?? told.pod;
      first();
    });
    // The status event tells the same, and comes also where there is no error.
    call.on('error', () => {});
    call.on('status', ({ code, details }) => {
      clearInterval(timer);
      open.delete(call);
      resolve({ ...told, code, message: details, by_client: stopped, end_ms: Date.now() });
    });
  });
}

async function streamTask(client, kind) {
  const first = awaited();
  while (!stopped) {
    report.streams.push(await stream(client, kind, first));
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
process.stdin.resume();
process.stdin.on('end', async () => {
  stopped = true;
  for (const call of open) call.cancel();
  await Promise.all(tasks);
  process.stdout.write(`${JSON.stringify(report)}\n`, () => process.exit(0));
});
