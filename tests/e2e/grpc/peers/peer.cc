// gRPC's C++ library with classes that protoc made of the published .proto files.
//
//     peer ADDRESS
//
// Prints one JSON document: what each kind of call brought.

#include <chrono>
#include <cstring>
#include <iostream>
#include <numeric>
#include <sstream>
#include <thread>

#include <grpcpp/grpcpp.h>

#include "grpc/health/v1/health.grpc.pb.h"
#include "grpc/reflection/v1/reflection.grpc.pb.h"
#include "grpc_service.grpc.pb.h"

using Floats = std::vector<float>;
using Stub = inference::GRPCInferenceService::Stub;

inference::ModelInferRequest request(const std::string& model, const Floats& values, bool raw = false, const std::string& id = "") {
  inference::ModelInferRequest made;
  made.set_model_name(model);
  made.set_id(id);
  auto* input = made.add_inputs();
  input->set_name("IN");
  input->set_datatype("FP32");
  input->add_shape(values.size());
  if (raw) {
    made.add_raw_input_contents(values.data(), values.size() * sizeof(float));
  } else {
    input->mutable_contents()->mutable_fp32_contents()->Add(values.begin(), values.end());
  }
  return made;
}

Floats floats(const inference::ModelInferResponse& response) {
  Floats found;
  for (const auto& data : response.raw_output_contents()) {
    found.resize(data.size() / sizeof(float));
    std::memcpy(found.data(), data.data(), data.size());
  }
  return found;
}

std::string text(const std::string& value) { return "\"" + value + "\""; }

std::string list(const Floats& values) {
  std::ostringstream out;
  for (size_t place = 0; place < values.size(); ++place) out << (place ? "," : "[") << values[place];
  return values.empty() ? "[]" : out.str() + "]";
}

std::string describe(const grpc::Status& status) {
  return "[" + std::to_string(status.error_code()) + "," + text(status.error_message()) + "]";
}

struct Context : grpc::ClientContext {
  explicit Context(double seconds = 60) {
    set_deadline(std::chrono::system_clock::now() + std::chrono::milliseconds(static_cast<int>(1000 * seconds)));
  }
};

grpc::Status infer(Stub& stub, const inference::ModelInferRequest& sent, inference::ModelInferResponse* got, double seconds = 60) {
  Context context(seconds);
  return stub.ModelInfer(&context, sent, got);
}

std::string streamed(Stub& stub, const std::vector<inference::ModelInferRequest>& requests, bool with_status) {
  Context context;
  if (with_status) context.AddMetadata("triton_grpc_error", "true");
  auto stream = stub.ModelStreamInfer(&context);
  for (const auto& each : requests) stream->Write(each);
  stream->WritesDone();
  std::string found;
  inference::ModelStreamInferResponse answer;
  while (stream->Read(&answer)) {
    const auto& response = answer.infer_response();
    const auto final = response.parameters().find("triton_final_response");
    const bool is_final = final != response.parameters().end() && final->second.bool_param();
    found += answer.error_message().empty()
        ? "[" + text(response.id()) + "," + list(floats(response)) + "," + (is_final ? "true" : "false") + "],"
        : text(answer.error_message()) + ",";
  }
  const auto status = stream->Finish();
  if (!status.ok()) return "[" + found + describe(status) + "]";
  return "[" + found.substr(0, found.size() - 1) + "]";
}

int cancelled(Stub& stub) {
  Context context;
  std::thread later([&context] {
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
    context.TryCancel();
  });
  inference::ModelInferResponse none;
  const auto status = stub.ModelInfer(&context, request("patient", {1}), &none);
  later.join();
  return status.error_code();
}

int main(int, char** arguments) {
  grpc::ChannelArguments options;
  options.SetMaxReceiveMessageSize(-1);
  const auto channel = grpc::CreateCustomChannel(arguments[1], grpc::InsecureChannelCredentials(), options);
  const auto stub = inference::GRPCInferenceService::NewStub(channel);
  std::cout << "{";

  inference::ServerLiveResponse live;
  Context for_live;
  stub->ServerLive(&for_live, {}, &live);
  std::cout << "\"live\":" << (live.live() ? "true" : "false");

  grpc::health::v1::HealthCheckResponse health;
  Context for_health;
  grpc::health::v1::Health::NewStub(channel)->Check(&for_health, {}, &health);
  std::cout << ",\"health\":" << health.status();

  Context for_services;
  const auto reflection = grpc::reflection::v1::ServerReflection::NewStub(channel)->ServerReflectionInfo(&for_services);
  grpc::reflection::v1::ServerReflectionRequest question;
  question.set_list_services("");
  reflection->Write(question);
  reflection->WritesDone();
  grpc::reflection::v1::ServerReflectionResponse services;
  reflection->Read(&services);
  std::string names;
  for (const auto& each : services.list_services_response().service()) names += "," + text(each.name());
  while (reflection->Read(&services)) {}
  reflection->Finish();
  std::cout << ",\"services\":[" << names.substr(1) << "]";

  inference::ModelMetadataRequest about;
  about.set_name("batched");
  inference::ModelMetadataResponse metadata;
  Context for_metadata;
  stub->ModelMetadata(&for_metadata, about, &metadata);
  const auto& input = metadata.inputs(0);
  std::cout << ",\"metadata\":[[" << text(input.name()) << "," << text(input.datatype()) << ",["
            << input.shape(0) << "," << input.shape(1) << "]]]";

  inference::ModelInferResponse response;
  infer(*stub, request("identity", {1, 2.5}), &response);
  std::cout << ",\"contents\":" << list(floats(response));
  infer(*stub, request("identity", {1, 2.5}, true), &response);
  std::cout << ",\"raw\":" << list(floats(response));
  infer(*stub, request("identity", {1}, false, "ü"), &response);
  std::cout << ",\"id\":" << text(response.id());

  Floats numbers(100000);
  std::iota(numbers.begin(), numbers.end(), 0);
  Context compressing;
  compressing.set_compression_algorithm(GRPC_COMPRESS_GZIP);
  stub->ModelInfer(&compressing, request("identity", numbers, true), &response);
  const auto returned = floats(response);
  std::cout << ",\"compressed\":" << static_cast<long long>(std::accumulate(returned.begin(), returned.end(), 0.0));

  auto repeat = request("repeat", {2}, false, "a");
  (*repeat.mutable_parameters())["triton_enable_empty_final_response"].set_bool_param(true);
  std::cout << ",\"stream\":" << streamed(*stub, {repeat, request("nobody", {1}), request("identity", {7}, false, "b")}, false);
  std::cout << ",\"stream_with_metadata\":" << streamed(*stub, {request("failing", {2})}, true);
  std::cout << ",\"unknown_model\":" << describe(infer(*stub, request("nobody", {1}), &response));
  std::cout << ",\"model_error\":" << describe(infer(*stub, request("failing", {2}), &response));
  std::cout << ",\"deadline\":" << infer(*stub, request("patient", {1}), &response, 0.3).error_code();
  std::cout << ",\"cancelled\":" << cancelled(*stub) << "}" << std::endl;
}
