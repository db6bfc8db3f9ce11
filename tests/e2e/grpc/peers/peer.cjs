// @grpc/grpc-js with the published .proto files, loaded when it runs.
//
//     node peer.cjs ADDRESS FOLDER_OF_THE_PROTO_FILES
//
// Prints one JSON document: what each kind of call brought.

"use strict";

const grpc = require("@grpc/grpc-js");
const loader = require("@grpc/proto-loader");

const [address, folder] = process.argv.slice(2);
const files = ["grpc_service.proto", "grpc/health/v1/health.proto", "grpc/reflection/v1/reflection.proto"];
const options = { includeDirs: [folder], keepCase: true, longs: Number, defaults: true, oneofs: true };
const loaded = grpc.loadPackageDefinition(loader.loadSync(files, options));
const credentials = grpc.credentials.createInsecure();
const large = { "grpc.max_receive_message_length": -1 };
const gzip = { ...large, "grpc.default_compression_algorithm": grpc.compressionAlgorithms.gzip };

function request(model, values, { raw = false, ...fields } = {}) {
  const input = { name: "IN", datatype: "FP32", shape: [values.length] };
  if (raw) return { model_name: model, ...fields, inputs: [input], raw_input_contents: [Buffer.from(Float32Array.from(values).buffer)] };
  return { model_name: model, ...fields, inputs: [{ ...input, contents: { fp32_contents: values } }] };
}

function floats(response) {
  const data = response ? Buffer.concat(response.raw_output_contents) : Buffer.alloc(0);
  return Array.from({ length: data.length / 4 }, (_, index) => data.readFloatLE(4 * index));
}

function deadline(seconds = 60) {
  return { deadline: Date.now() + 1000 * seconds };
}

function call(stub, method, message, callOptions = deadline()) {
  return new Promise((resolve, reject) =>
    stub[method](message, callOptions, (error, reply) => (error ? reject(error) : resolve(reply))));
}

async function status(...args) {
  try {
    await call(...args);
    return [0, ""];
  } catch (error) {
    return [error.code, error.details];
  }
}

function streamed(stream, requests, describe) {
  return new Promise((resolve) => {
    const found = [];
    stream.on("data", (answer) => found.push(describe(answer)));
    stream.on("error", (error) => resolve([...found, [error.code, error.details]]));
    stream.on("end", () => resolve(found));
    requests.forEach((each) => stream.write(each));
    stream.end();
  });
}

function streamedResponse({ error_message: message, infer_response: response }) {
  return message || [response.id, floats(response), response.parameters.triton_final_response.bool_param];
}

function cancelled(stub) {
  return new Promise((resolve) => {
    const pending = stub.ModelInfer(request("patient", [1]), (error) => resolve(error.code));
    setTimeout(() => pending.cancel(), 200); // in the same turn, grpc-js would tell the caller but not the server
  });
}

async function main() {
  const stub = new loaded.inference.GRPCInferenceService(address, credentials, large);
  const compressing = new loaded.inference.GRPCInferenceService(address, credentials, gzip);
  const health = new loaded.grpc.health.v1.Health(address, credentials);
  const reflection = new loaded.grpc.reflection.v1.ServerReflection(address, credentials);
  const withStatus = new grpc.Metadata();
  withStatus.set("triton_grpc_error", "true");
  const last = { triton_enable_empty_final_response: { bool_param: true } };
  const metadata = await call(stub, "ModelMetadata", { name: "batched" });
  const numbers = Array.from({ length: 100000 }, (_, index) => index);
  const services = (answer) => answer.list_services_response.service.map(({ name }) => name);
  const seen = {
    live: (await call(stub, "ServerLive", {})).live,
    health: (await call(health, "Check", {})).status,
    services: (await streamed(reflection.ServerReflectionInfo(deadline()), [{ list_services: "" }], services))[0],
    metadata: metadata.inputs.map(({ name, datatype, shape }) => [name, datatype, shape]),
    contents: floats(await call(stub, "ModelInfer", request("identity", [1, 2.5]))),
    raw: floats(await call(stub, "ModelInfer", request("identity", [1, 2.5], { raw: true }))),
    id: (await call(stub, "ModelInfer", request("identity", [1], { id: "ü" }))).id,
    compressed: floats(await call(compressing, "ModelInfer", request("identity", numbers, { raw: true }))).reduce((a, b) => a + b),
    stream: await streamed(
      stub.ModelStreamInfer(deadline()),
      [request("repeat", [2], { id: "a", parameters: last }), request("nobody", [1]), request("identity", [7], { id: "b" })],
      streamedResponse),
    stream_with_metadata: await streamed(stub.ModelStreamInfer(withStatus, deadline()), [request("failing", [2])], streamedResponse),
    unknown_model: await status(stub, "ModelInfer", request("nobody", [1])),
    model_error: await status(stub, "ModelInfer", request("failing", [2])),
    deadline: (await status(stub, "ModelInfer", request("patient", [1]), deadline(0.3)))[0],
    cancelled: await cancelled(stub),
  };
  console.log(JSON.stringify(seen));
  [stub, compressing, health, reflection].forEach((each) => each.close());
}

main();
