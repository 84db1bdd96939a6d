// What the Node.js programs share: lines of JSON, streamed messages, the report of a client, the journal of an app.
'use strict';

const CHUNK = 3072;

const sleep = (millis) => new Promise((resolve) => setTimeout(resolve, millis));
const say = (fields) => process.stdout.write(`${JSON.stringify(fields)}\n`);
const sayLast = (fields) => process.stdout.write(`${JSON.stringify(fields)}\n`, () => process.exit(0));

/** One streamed message: "SEQ NAME " and then a pattern that depends on the sequence number and the position. */
function chunk(seq, name) {
  const bytes = Buffer.alloc(CHUNK);
  for (let at = bytes.write(`${seq} ${name} `); at < CHUNK; at += 1) bytes[at] = 97 + ((seq + at) % 26);
  return bytes;
}

/** The sequence number and the name of a chunk, or null if a byte is missing or wrong. */
function check(bytes) {
  const [seq, name] = bytes.subarray(0, 64).toString('latin1').split(' ', 2);
  const number = Number(seq);
  if (bytes.length !== CHUNK || !Number.isInteger(number)) return null;
  for (let at = seq.length + name.length + 2; at < CHUNK; at += 1) {
    if (bytes[at] !== 97 + ((number + at) % 26)) return null;
  }
  return { seq: number, pod: name };
}

/** One stream as the report has it: streams of all kinds are judged alike. */
class Stream {
  constructor(kind) {
    this.told = { kind, pod: '', code: 0, message: '', messages: 0, contiguous: true, whole: true };
  }

  chunk(bytes) {
    const checked = check(bytes);
    this.told.messages += 1;
    this.told.whole = this.told.whole && checked !== null;
    this.told.contiguous = this.told.contiguous && checked?.seq === this.told.messages;
    this.told.pod = checked?.pod ?? this.told.pod;
  }

  end(fields, byClient) {
    return { ...this.told, ...fields, by_client: byClient, end_ms: Date.now() };
  }
}

/** What a client counts, and how it begins and ends. */
class Report {
  constructor(client) {
    // In `sent` are the ids of which the client takes it that they have arrived.
    this.told = { client, ok: 0, failed: 0, codes: {}, errors: [], streams: [], sent: [] };
    this.stopped = false;
    this.waiting = 0;
  }

  fail(code, text) {
    this.told.failed += 1;
    this.told.codes[code] = (this.told.codes[code] ?? 0) + 1;
    if (this.told.errors.length < 5) this.told.errors.push(text);
  }

  sent(id) {
    this.told.ok += 1;
    this.told.sent.push(id);
  }

  /** Returns what a task calls with its first answer; the last of them makes the client ready. */
  awaited() {
    this.waiting += 1;
    let done = false;
    return () => {
      if (done) return;
      done = true;
      this.waiting -= 1;
      if (this.waiting === 0) say({ event: 'ready' });
    };
  }

  /** Runs the tasks until standard input ends; `stop` makes them come to their end. */
  run(tasks, stop) {
    process.stdin.resume();
    process.stdin.on('end', async () => {
      this.stopped = true;
      stop();
      await Promise.all(tasks);
      sayLast(this.told);
    });
  }
}

/** What reached an app: messages by id, sessions or streams as `open`. Exits some time after SIGTERM, whatever is open. */
class Journal {
  constructor() {
    this.told = { calls: 0, late: 0, twice: 0, damaged: 0, codes: {} };
    this.ids = new Set();
    this.open = 0;
    this.stopped = false;
  }

  begin() {
    this.open += 1;
    if (this.stopped) this.told.late += 1;
  }

  end(code) {
    this.open -= 1;
    this.told.codes[code] = (this.told.codes[code] ?? 0) + 1;
  }

  message(id) {
    this.told.calls += 1;
    if (this.stopped) this.told.late += 1;
    if (this.ids.has(id)) this.told.twice += 1;
    this.ids.add(id);
  }

  /** A chunk from a client counts under its name and number. */
  chunk(bytes) {
    const checked = check(bytes);
    if (checked) this.message(`${checked.pod}-${checked.seq}`);
    else this.told.damaged += 1;
  }

  /**
   * Serves on a port of its own until SIGTERM, and then for as long as an app gets that closes its listener first.
   * `open` says what is at work, where a session is over before its socket is.
   */
  serve(server, open = () => this.open) {
    process.on('SIGTERM', () => {
      this.stopped = true;
      say({ event: 'sigterm', at_ms: Date.now(), calls: this.told.calls, open: open() });
      const exit = () => sayLast({ event: 'exit', at_ms: Date.now(), ...this.told, ids: [...this.ids] });
      server.close(exit);
      server.closeIdleConnections?.();
      setTimeout(exit, 1500);
    });
    server.listen(0, '127.0.0.1', () => say({ event: 'listening', address: `127.0.0.1:${server.address().port}` }));
  }
}

const podName = () => process.argv[process.argv.indexOf('--pod') + 1];

module.exports = { Journal, Report, Stream, chunk, podName, say, sleep };
