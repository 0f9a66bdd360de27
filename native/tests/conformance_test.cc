// Reads the canonical vectors with the C++ codec: conformance_test FOLDER
//
// Each vector is parsed, every field is compared with its case, the tensors are put together, all
// sums are computed anew, and the bytes that come out are compared with those that went in. Each
// malformed message must be refused by the name of the field that is wrong.

#include <fstream>
#include <functional>
#include <iostream>
#include <iterator>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <vector>

#include "compare.h"
#include "wire/crc32c.h"
#include "wire/frames.h"

namespace meshnet {
namespace {

using google::protobuf::Message;
using nlohmann::json;

int failures = 0;

void fail(const std::string& name, const std::string& what) {
  std::cerr << name << ": " << what << '\n';
  ++failures;
}

void expect_bytes(const std::string& found, const std::string& expected, const std::string& name,
                  const std::string& what) {
  if (found != expected) fail(name, what + ": " + hex(found) + ", not " + hex(expected));
}

std::string file(const std::string& path) {
  std::ifstream stream(path, std::ios::binary);
  if (!stream) throw std::runtime_error(path + " can't be read");
  return {std::istreambuf_iterator<char>(stream), {}};
}

std::unique_ptr<Message> new_message(const std::string& kind) {
  const auto* descriptor =
      pb::SessionRequest::descriptor()->file()->pool()->FindMessageTypeByName("meshnet.wire.v1." +
                                                                              kind);
  if (descriptor == nullptr) throw std::runtime_error("the schema has no " + kind);
  const auto* factory = google::protobuf::MessageFactory::generated_factory();
  return std::unique_ptr<Message>(
      const_cast<google::protobuf::MessageFactory*>(factory)->GetPrototype(descriptor)->New());
}

// A chunk written anew from its tensors: unpacked, each in one fragment, with what an envelope of a
// chunk needs and no more.
void rewrite_prefill(const Bundle& boundary, pb::PrefillChunk* chunk) {
  pb::Envelope* envelope = chunk->mutable_envelope();
  for (const char* field : {"work_id", "fingerprint", "layers", "effective_start_layer",
                            "deadline_unix_nanos"}) {
    envelope->GetReflection()->ClearField(envelope,
                                          pb::Envelope::descriptor()->FindFieldByName(field));
  }
  envelope->set_compression(pb::COMPRESSION_NONE);
  chunk->clear_bundle();
  envelope->set_checksum(write_bundle(boundary, pb::COMPRESSION_NONE, 1 << 20,
                                      chunk->mutable_bundle()));
}

// Leaves out what isn't known, but for the fields that travel on with what the message becomes on
// the next seam: those of the message within the request or reply, and of its envelope.
void discard_unknown(Message* whole, const std::vector<Message*>& kept) {
  std::vector<google::protobuf::UnknownFieldSet> fields(kept.size());
  for (size_t i = 0; i < kept.size(); ++i) {
    fields[i].MergeFrom(kept[i]->GetReflection()->GetUnknownFields(*kept[i]));
  }
  whole->DiscardUnknownFields();
  for (size_t i = 0; i < kept.size(); ++i) {
    kept[i]->GetReflection()->MutableUnknownFields(kept[i])->MergeFrom(fields[i]);
  }
}

std::vector<Message*> travelling(pb::SessionRequest* request) {
  if (request->has_open()) {
    return {request->mutable_open(), request->mutable_open()->mutable_envelope()};
  }
  if (request->has_prefill()) {
    return {request->mutable_prefill(), request->mutable_prefill()->mutable_envelope()};
  }
  std::vector<Message*> found;
  if (request->has_decode()) {
    for (auto& step : *request->mutable_decode()->mutable_steps()) found.push_back(&step);
  }
  if (request->has_returned()) {
    for (auto& token : *request->mutable_returned()->mutable_replies()) found.push_back(&token);
  }
  return found;
}

std::string rewrite_request(const std::string& data, uint64_t max_bytes) {
  Request request = read_request(data, max_bytes);
  if (request.message.has_prefill()) {
    rewrite_prefill(request.boundary, request.message.mutable_prefill());
  }
  if (request.message.has_decode()) {
    for (pb::DecodeStep& step : *request.message.mutable_decode()->mutable_steps()) {
      if (step.dtype() == pb::TENSOR_DTYPE_FLOAT32) step.clear_dtype();
    }
  }
  discard_unknown(&request.message, travelling(&request.message));
  return serialise(request.message);
}

std::string rewrite_reply(const std::string& data, uint64_t) {
  pb::SessionResponse reply = read_reply(data);
  if (reply.has_failed()) {
    reply.mutable_failed()->mutable_error()->set_code(code_of(reply.failed().error()));
  }
  std::vector<Message*> kept;
  if (reply.has_tokens()) {
    for (auto& token : *reply.mutable_tokens()->mutable_replies()) kept.push_back(&token);
  }
  discard_unknown(&reply, kept);
  return serialise(reply);
}

template <auto Read>
std::string rewrite(const std::string& data, uint64_t) {
  return serialise(Read(data));
}

// To what the codec makes of it, and back to bytes, by the type of the message.
const std::map<std::string, std::function<std::string(const std::string&, uint64_t)>> kRewrite = {
    {"SessionRequest", rewrite_request},
    {"SessionResponse", rewrite_reply},
    {"GetCapabilityResponse", rewrite<read_capability>},
    {"HealthResponse", rewrite<read_health>},
    {"ReleaseRequest", rewrite<read_release>},
    {"CancelRequest", rewrite<read_cancel>},
    {"ShardError", rewrite<read_error>},
};

class Conformance {
 public:
  explicit Conformance(std::string folder)
      : folder_(std::move(folder)), cases_(json::parse(file(folder_ + "/vectors.json"))) {
    for (const json& each : cases_.at("vectors")) kinds_[each.at("name")] = each.at("message");
  }

  void run() {
    for (const json& each : cases_.at("vectors")) guarded(each, [&] { vector(each); });
    for (const json& each : cases_.at("malformed")) guarded(each, [&] { malformed(each); });
    std::cout << cases_.at("vectors").size() << " vectors, " << cases_.at("malformed").size()
              << " malformed messages\n";
    if (kinds_.size() < 50 || cases_.at("malformed").size() < 100) {
      fail("vectors.json", "it holds fewer cases than it should");
    }
  }

 private:
  static void guarded(const json& each, const std::function<void()>& check) {
    try {
      check();
    } catch (const std::exception& error) {
      fail(each.at("name"), error.what());
    }
  }

  std::string bytes(const std::string& name) const {
    return file(folder_ + "/vectors/" + name + ".bin");
  }

  uint64_t max_bytes(const json& each) const {
    return each.value("max_bytes", cases_.at("max_bytes").get<uint64_t>());
  }

  void vector(const json& each) const {
    const std::string name = each.at("name");
    const std::string kind = each.at("message");
    const std::string data = bytes(name);
    const std::unique_ptr<Message> message = new_message(kind);
    if (!message->ParseFromString(data)) throw std::runtime_error("it can't be parsed");
    for (const std::string& line : differences(*message, each.at("fields"), kind)) {
      fail(name, line);
    }
    expect_bytes(serialise(*message), data, name, "a parse and serialise hop");
    expect_bytes(kRewrite.at(kind)(data, max_bytes(each)), bytes(each.value("means", name)), name,
                 "what it means");
    if (each.contains("tensors")) tensors(each, data);
  }

  // Tensors against the case, and every sum against one computed here.
  void tensors(const json& each, const std::string& data) const {
    const std::string name = each.at("name");
    const Request request = read_request(data, max_bytes(each));
    const pb::PrefillChunk& chunk = request.message.prefill();
    const auto& found = request.boundary.tensors;
    if (found.size() != each.at("tensors").size()) throw std::runtime_error("tensors are missing");
    std::string everything;
    for (size_t i = 0; i < found.size(); ++i) {
      const std::string place = "tensor " + std::to_string(i);
      if (hex(found[i].data) != each.at("tensors")[i]) fail(name, place + ": other data");
      const uint32_t stated = chunk.bundle().tensors(static_cast<int>(i)).checksum();
      if (crc32c(found[i].data) != stated) fail(name, place + ": another sum");
      everything += found[i].data;
    }
    if (crc32c(everything) != chunk.envelope().checksum()) fail(name, "the envelope's sum");
  }

  void malformed(const json& each) const {
    const std::string name = each.at("name");
    const std::string kind =
        each.contains("base") ? kinds_.at(each.at("base")) : each.at("message").get<std::string>();
    const std::string data = file(folder_ + "/malformed/" + name + ".bin");
    try {
      kRewrite.at(kind)(data, max_bytes(each));
    } catch (const ShardFailure& failure) {
      const std::string field = detail(failure.error(), "field");
      if (failure.code() != pb::ERROR_CODE_MALFORMED_FRAME || field != each.at("field")) {
        fail(name, "refused as " + failure.error().ShortDebugString());
      }
      return;
    }
    fail(name, "accepted, though " + each.at("field").get<std::string>() + " is wrong");
  }

  std::string folder_;
  json cases_;
  std::map<std::string, std::string> kinds_;
};

}  // namespace
}  // namespace meshnet

int main(int argc, char** argv) {
  if (argc != 2) {
    std::cerr << "usage: conformance_test FOLDER\n";
    return 2;
  }
  // The check value of CRC32C, in RFC 3720's terms.
  if (meshnet::crc32c("123456789") != 0xE3069283) meshnet::fail("crc32c", "it isn't Castagnoli");
  if (meshnet::crc32c("456789", meshnet::crc32c("123")) != 0xE3069283) {
    meshnet::fail("crc32c", "it doesn't go on from an earlier sum");
  }
  meshnet::Conformance(argv[1]).run();
  std::cout << (meshnet::failures == 0 ? "all as they should be\n" : "FAILED\n");
  return meshnet::failures == 0 ? 0 : 1;
}
