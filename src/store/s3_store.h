#pragma once

#include <memory>
#include <stop_token>
#include <string_view>

#include "store/object_store.h"
#include "store/s3_client.h"

namespace flotilla {

// Objects in a bucket of Amazon S3, or of a server that speaks its API and writes conditionally; docs/s3.md has
// addresses and permissions. failed_precondition when there is no such bucket. With create, the server must prove that
// it heeds If-None-Match and If-Match: failed_precondition when it does not. With single-writer=yes in the address a
// look comes before each write instead, and what another writes between the two is overwritten unnoticed. Once `calm`
// is requested, operations are tried once only.
//
// Tags are the server's. An operation that is repeated after an answer was lost may meet its own effect: such a write
// is unavailable, not already_exists or failed_precondition. Keys that continue another one are not noticed.
Result<std::unique_ptr<ObjectStore>> open_s3_store(std::string_view address, bool create, std::stop_token calm = {},
                                                   S3Options options = {});

}  // namespace flotilla
