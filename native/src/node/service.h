// The gRPC service: bytes to messages, errors to status; the work is done on the loop.
#pragma once

#include <grpcpp/grpcpp.h>

#include <functional>
#include <string>

#include "meshnet/wire/v1/shard_runtime.grpc.pb.h"
#include "node/shard_node.h"

namespace meshnet {

// Calls whose handlers get and give bytes.
template <typename Base>
using Raw = pb::ShardRuntime::WithRawCallbackMethod_GetCapability<
    pb::ShardRuntime::WithRawCallbackMethod_Health<pb::ShardRuntime::WithRawCallbackMethod_Session<
        pb::ShardRuntime::WithRawCallbackMethod_Release<
            pb::ShardRuntime::WithRawCallbackMethod_Cancel<Base>>>>>;

class NodeService : public Raw<pb::ShardRuntime::Service> {
 public:
  NodeService(EventLoop* loop, ShardNode* node) : loop_(loop), node_(node) {}

  grpc::ServerUnaryReactor* GetCapability(grpc::CallbackServerContext* context,
                                          const grpc::ByteBuffer* request,
                                          grpc::ByteBuffer* response) override;
  grpc::ServerUnaryReactor* Health(grpc::CallbackServerContext* context,
                                   const grpc::ByteBuffer* request,
                                   grpc::ByteBuffer* response) override;
  grpc::ServerUnaryReactor* Release(grpc::CallbackServerContext* context,
                                    const grpc::ByteBuffer* request,
                                    grpc::ByteBuffer* response) override;
  grpc::ServerUnaryReactor* Cancel(grpc::CallbackServerContext* context,
                                   const grpc::ByteBuffer* request,
                                   grpc::ByteBuffer* response) override;
  grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* Session(
      grpc::CallbackServerContext* context) override;

 private:
  // Runs `work` on the loop and answers with what it returns, or with the error it throws.
  grpc::ServerUnaryReactor* answer(grpc::CallbackServerContext* context,
                                   grpc::ByteBuffer* response,
                                   std::function<grpc::ByteBuffer()> work);

  EventLoop* const loop_;
  ShardNode* const node_;
};

}  // namespace meshnet
