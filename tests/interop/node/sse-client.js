// EventSource, as Node.js has it in the package eventsource: streams that resume by themselves where they stopped.
// Usage: node sse-client.js ADDRESS
'use strict';

const { once } = require('node:events');
const { EventSource } = require('eventsource');
const { Report, Stream } = require('./wire');

const TASKS = 10;
const report = new Report('eventsource');

function task(path) {
  const source = new EventSource(`http://${process.argv[2]}${path}`);
  let lived = null;
  let last = 0;
  const ended = (error) => {
    if (lived) {
      // The end of a body is no error; what breaks off has a message.
      const code = error?.message ? 'broken' : 0;
      report.told.streams.push(lived.end({ code, message: error?.message ?? '' }, report.stopped));
    } else if (error?.message) {
      // Without a code it tries again; any code ends it for good.
      report.fail(error.code ?? 'connect', error.message);
    }
    lived = null;
  };
  // An answer without an event is no stream: it tells the client to come back later.
  source.addEventListener('hello', ({ data }) => {
    lived = new Stream(path === '/silent' ? 'silent' : 'events');
    lived.told.pod = data;
  });
  source.addEventListener('message', ({ data, lastEventId }) => {
    const number = Number(lastEventId);
    report.told.ok += 1;
    lived.told.messages += 1;
    lived.told.contiguous = lived.told.contiguous && (last === 0 || number === last + 1);
    lived.told.whole = lived.told.whole && data === `event ${number}\nfrom ${lived.told.pod}`;
    last = number;
  });
  source.addEventListener('error', ended);
  return { source, ended };
}

const tasks = [];

/** One after the other, so that a silent one comes to each pod. */
async function begin() {
  const ready = report.awaited();
  for (let number = 0; number < TASKS; number += 1) {
    const one = task(number % 5 === 0 ? '/silent' : '/events');
    tasks.push(one);
    await once(one.source, 'hello');
  }
  ready();
}

report.run([begin()], () => {
  for (const { source, ended } of tasks) {
    source.close();
    ended();
  }
});
