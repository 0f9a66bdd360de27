#include "node/service.h"

#include <utility>

#include "node/buffers.h"

namespace meshnet {

grpc::ServerUnaryReactor* NodeService::GetCapability(grpc::CallbackServerContext* context,
                                                     const grpc::ByteBuffer*,
                                                     grpc::ByteBuffer* response) {
  return answer(context, response, [this] {
    pb::GetCapabilityResponse message;
    *message.mutable_capability() = node_->capability();
    return to_buffer(message);
  });
}

grpc::ServerUnaryReactor* NodeService::Health(grpc::CallbackServerContext* context,
                                              const grpc::ByteBuffer*,
                                              grpc::ByteBuffer* response) {
  return answer(context, response, [this] { return to_buffer(node_->health()); });
}

grpc::ServerUnaryReactor* NodeService::Release(grpc::CallbackServerContext* context,
                                               const grpc::ByteBuffer* request,
                                               grpc::ByteBuffer* response) {
  return answer(context, response, [this, data = to_bytes(*request)] {
    const pb::ReleaseRequest message = read_release(data);
    node_->release({message.route_session_id(), message.route_epoch()});
    return to_buffer(pb::ReleaseResponse());
  });
}

grpc::ServerUnaryReactor* NodeService::Cancel(grpc::CallbackServerContext* context,
                                              const grpc::ByteBuffer* request,
                                              grpc::ByteBuffer* response) {
  return answer(context, response, [this, data = to_bytes(*request)] {
    const pb::CancelRequest message = read_cancel(data);
    node_->cancel({message.route_session_id(), message.route_epoch()}, message.reason());
    return to_buffer(pb::CancelResponse());
  });
}

grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* NodeService::Session(
    grpc::CallbackServerContext* context) {
  return Seam::serve(context, loop_, node_, node_->capability().flow().max_chunk_bytes());
}

grpc::ServerUnaryReactor* NodeService::answer(grpc::CallbackServerContext* context,
                                              grpc::ByteBuffer* response,
                                              std::function<grpc::ByteBuffer()> work) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  loop_->post([context, response, reactor, work = std::move(work)] {
    try {
      *response = work();
      reactor->Finish(grpc::Status::OK);
    } catch (const ShardFailure& failure) {
      context->AddTrailingMetadata(kErrorTrailer, failure.error().SerializeAsString());
      reactor->Finish(to_status(failure.error()));
    }
  });
  return reactor;
}

}  // namespace meshnet
