// Node's own https and http2: GET and POST at a steady pace, half of the tasks in HTTP/1.1 with a keep-alive agent, half in
// HTTP/2; half of each in TLS 1.2, half in TLS 1.3. Usage: node https-client.js ADDRESS CA
'use strict';

const fs = require('node:fs');
const http2 = require('node:http2');
const https = require('node:https');
const { text } = require('node:stream/consumers');
const { Report, sleep } = require('./wire');

const TASKS = 4;
const PACE = 20;
const SLOW_MILLIS = 700;
const origin = `https://${process.argv[2]}`;
const ca = fs.readFileSync(process.argv[3]);
const report = new Report('node-https');

/** A connection may also break while no request is on it. */
const broken = (error) => report.fail(error.code ?? 'broken', error.message);

/** What comes with an event, unless an error or the end is first: that may come without an error. */
const first = (emitter, event) => new Promise((resolve, reject) => {
  emitter.once(event, resolve).once('error', reject).once('close', () => reject(new Error(`closed before the ${event}`)));
});

function overHttp1(options) {
  const agent = new https.Agent({ keepAlive: true, ...options });
  agent.on('free', (socket) => socket.off('error', broken).on('error', broken));
  const exchange = async (path, method, headers, body) => {
    const request = https.request(origin + path, { method, agent, headers });
    request.end(body);
    const answer = await first(request, 'response');
    return { status: answer.statusCode, got: await text(answer) };
  };
  return { exchange, stop: () => agent.destroy() };
}

/** Requests on one session until the server says that it ends, which Node heeds by itself; then on the next one. */
function overHttp2(options) {
  let session;
  const exchange = async (path, method, headers, body) => {
    if (!session || session.closed || session.destroyed) {
      session = http2.connect(origin, options);
      session.on('error', broken);
      await first(session, 'connect');
    }
    const stream = session.request({ ':path': path, ':method': method, ...headers });
    stream.end(body);
    const answer = await first(stream, 'response');
    return { status: answer[':status'], got: await text(stream) };
  };
  return { exchange, stop: () => session?.close() };
}

async function request({ exchange }, id, count) {
  const body = count % 2 ? `body of ${id}` : undefined;
  const path = `/?ms=${count % 10 === 9 ? SLOW_MILLIS : 5}`;
  try {
    const { status, got } = await exchange(path, body ? 'POST' : 'GET', { 'x-request-id': id }, body);
    if (status === 200 && got.includes(id)) report.sent(id);
    else report.fail(String(status), `${status} to ${id}: ${got}`);
  } catch (error) {
    report.fail(error.code ?? 'error', `${id}: ${error.message}`);
    await sleep(100);
  }
}

async function run() {
  const ready = report.awaited();
  const clients = [];
  // One after the other, so that each kind comes to each pod.
  for (const [over, version] of [overHttp1, overHttp2].flatMap((one) => [[one, 'TLSv1.2'], [one, 'TLSv1.3']])) {
    for (let copy = 0; copy < TASKS / 2; copy += 1) {
      const client = over({ ca, minVersion: version, maxVersion: version });
      await request(client, `node-${clients.length}-0`, 0);
      clients.push(client);
    }
  }
  ready();
  await Promise.all(clients.map(async (client, number) => {
    for (let count = 1; !report.stopped; count += 1) {
      await request(client, `node-${number}-${count}`, count);
      await sleep(PACE);
    }
    client.stop();
  }));
}

report.run([run()], () => {});
