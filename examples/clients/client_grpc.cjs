// Calls scale, and count_up on a stream, with @grpc/grpc-js. The .proto files are read when the program starts.
//
//     npm install
//     node client_grpc.cjs [--url host:port] [--proto folder of grpc_service.proto]

"use strict";

const assert = require("node:assert/strict");
const path = require("node:path");
const { parseArgs } = require("node:util");
const grpc = require("@grpc/grpc-js");
const loader = require("@grpc/proto-loader");

const { values: options } = parseArgs({
  options: {
    url: { type: "string", default: "localhost:8001" },
    proto: { type: "string", default: path.join(__dirname, "../../host/pybackend/modelconfig/protobuf/definitions") },
  },
});
const definition = loader.loadSync("grpc_service.proto", { includeDirs: [options.proto], keepCase: true, longs: Number, defaults: true });
const { GRPCInferenceService } = grpc.loadPackageDefinition(definition).inference;

function scale(stub, numbers) {
  const request = {
    model_name: "scale",
    inputs: [{ name: "X", datatype: "FP32", shape: [numbers.length] }],
    raw_input_contents: [Buffer.from(Float32Array.from(numbers).buffer)],
  };
  return new Promise((resolve, reject) =>
    stub.ModelInfer(request, { deadline: Date.now() + 30000 }, (error, reply) => {
      if (error) return reject(error);
      const [bytes] = reply.raw_output_contents;
      return resolve(numbers.map((_, index) => bytes.readFloatLE(4 * index)));
    }));
}

function countUp(stub, limit) {
  return new Promise((resolve, reject) => {
    const numbers = [];
    const stream = stub.ModelStreamInfer({ deadline: Date.now() + 30000 });
    stream.on("data", ({ error_message: message, infer_response: response }) =>
      message ? reject(new Error(message)) : numbers.push(response.raw_output_contents[0].readInt32LE()));
    stream.on("error", reject);
    stream.on("end", () => resolve(numbers));
    stream.write({
      model_name: "count_up",
      inputs: [{ name: "LIMIT", datatype: "INT32", shape: [1], contents: { int_contents: [limit] } }],
    });
    stream.end(); // the server sends what is outstanding, then ends the stream too
  });
}

async function main() {
  const stub = new GRPCInferenceService(options.url, grpc.credentials.createInsecure());
  const scaled = await scale(stub, [1, 2, 3]);
  console.log("scale:", scaled);
  assert.deepEqual(scaled, [2, 4, 6]);
  const numbers = await countUp(stub, 4);
  console.log("count_up sent", numbers);
  assert.deepEqual(numbers, [1, 2, 3, 4]);
  stub.close();
  console.log("PASS: clients");
}

main();
