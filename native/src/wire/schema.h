// The generated schema, under a short name.
#pragma once

#include "meshnet/wire/v1/shard_runtime.pb.h"

namespace meshnet {

namespace pb = ::meshnet::wire::v1;

}  // namespace meshnet
