// Neighbouring pages -> fewer, fuller pages that hold the same tokens, values and codes copied as they are.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace onnx_ai_rt {

// Merges pages of `run` (a run of pages out of a cache: `size` bytes, read and replaced) from the left on, as long as a
// page of at most block_size tokens comes of it; capacity is the length then. Returns the size of the result, which
// lies at `run` and is never longer.
//
// Pages merge when they are written as the library writes pages (no names, no unknown fields, one scale and zero point
// a side), in the same formats with the same parameters. All others, and whatever lies between pages, stay byte for
// byte. Costs time in proportion to the run alone. Throws InvalidArgument, with the run as it was.
size_t MergePages(const std::string& op_name, uint8_t* run, size_t size, int64_t block_size);

}  // namespace onnx_ai_rt
