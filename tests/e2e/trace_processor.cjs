// Asks a trace processor of Perfetto, built as WebAssembly, about a trace.
//
//   node trace_processor.cjs FOLDER TRACE SQL... > REPLIES
//
// FOLDER holds engine_bundle.js and trace_processor*.wasm. REPLIES are the bytes of a
// TraceProcessorRpcStream. The bundle is a browser's worker: what it asks of one is here.
const fs = require('fs');
const path = require('path');
const [folder, trace, ...queries] = process.argv.slice(2);

const varint = (n) => {
  const out = [];
  for (; n > 127; n = Math.floor(n / 128)) out.push((n % 128) | 128);
  return Buffer.from([...out, n]);
};
const field = (number, bytes) =>
  Buffer.concat([varint(number * 8 + 2), varint(bytes.length), bytes]);
const number = (field, value) => Buffer.concat([varint(field * 8), varint(value)]);

let seq = 0;
const request = (method, ...arguments_) =>
  field(1, Buffer.concat([number(1, ++seq), number(2, method), ...arguments_]));

class FileRequest {
  open(_method, url) {
    this.url = url;
  }
  overrideMimeType() {}
  setRequestHeader() {}
  send() {
    const bytes = fs.readFileSync(path.join(folder, path.basename(this.url)));
    this.status = 200;
    this.response = bytes.buffer.slice(bytes.byteOffset, bytes.byteOffset + bytes.length);
    if (this.onload) setImmediate(() => this.onload());
  }
}

const output = process.stdout;
const exit = process.exit.bind(process);
const source = fs.readFileSync(path.join(folder, 'engine_bundle.js'), 'utf8');
console.log = console.warn = console.error;
globalThis.self = globalThis;
globalThis.location = {href: 'file:///engine_bundle.js', origin: 'null'};
globalThis.WorkerGlobalScope = class {};
globalThis.importScripts = () => {};
globalThis.XMLHttpRequest = FileRequest;
delete globalThis.fetch;
globalThis.process = undefined;  // else it takes this for node and not for a worker
(0, eval)(source);

const replies = [];
let queried = 0;
const finished = (bytes) => {
  // each query ends with one reply that carries is_last_batch; those are small and come in order
  replies.push(Buffer.from(bytes));
};
const port = {postMessage: finished, onmessage: null};
globalThis.onmessage({data: port});

const send = (bytes) => port.onmessage({data: new Uint8Array(bytes)});
const start = () => {
  try {
    const bytes = fs.readFileSync(trace);
    for (let at = 0; at < bytes.length; at += 1 << 24) {
      send(request(1, field(101, bytes.subarray(at, at + (1 << 24)))));
    }
    send(request(2));
    for (const sql of queries) send(request(3, field(103, field(1, Buffer.from(sql)))));
    output.write(Buffer.concat(replies), () => exit(0));
  } catch (error) {
    console.error(error.stack);
    exit(1);
  }
};
// the module is ready when a call of it no longer fails
setTimeout(start, 1500);
