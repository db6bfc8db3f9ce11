// Calls scale with fetch, as a browser or Node.js has it, and with binary tensors: a JSON part, then the bytes.
//
//     node client_fetch.mjs [--url host:port]

import assert from "node:assert/strict";

const [flag, value] = process.argv.slice(2);
const url = flag === "--url" ? value : "localhost:8000";

async function infer(model, name, values) {
  const tensor = { name, datatype: "FP32", shape: [values.length], parameters: { binary_data_size: values.byteLength } };
  const header = new TextEncoder().encode(JSON.stringify({ inputs: [tensor], parameters: { binary_data_output: true } }));
  const reply = await fetch(`http://${url}/v2/models/${model}/infer`, {
    method: "POST",
    headers: { "Inference-Header-Content-Length": header.length },
    body: new Blob([header, values]),
  });
  if (!reply.ok) throw new Error((await reply.json()).error);
  const length = Number(reply.headers.get("Inference-Header-Content-Length"));
  const body = await reply.arrayBuffer();
  const [output] = JSON.parse(new TextDecoder().decode(body.slice(0, length))).outputs;
  return new Float32Array(body.slice(length, length + output.parameters.binary_data_size));
}

const answer = await infer("scale", "X", Float32Array.of(1, 2, 3));
console.log("scale:", Array.from(answer));
assert.deepEqual(Array.from(answer), [2, 4, 6]);
await assert.rejects(infer("nobody", "X", Float32Array.of(1)), /unknown model/);
console.log("PASS: clients");
