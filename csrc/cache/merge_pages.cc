#include "cache/merge_pages.h"

#include <cstring>
#include <vector>

#include "cache/block_writer.h"
#include "cache/paged_cache.h"
#include "kernels/error.h"

namespace onnx_ai_rt {
namespace {

bool SameBytes(const uint8_t* a, const uint8_t* b, size_t begin, size_t end) {
  return begin >= end || std::memcmp(a + begin, b + begin, end - begin) == 0;
}

class Merger {
 public:
  Merger(const PagedCacheView& view, int64_t block_size, std::vector<uint8_t>* out)
      : view_(view), block_size_(block_size), out_(*out) {}

  void Run() {
    const uint8_t* copied_from = view_.bytes.data;
    const size_t count = view_.blocks.size();
    for (size_t first = 0; first < count;) {
      const size_t last = EndOfGroup(first);
      if (last - first > 1) {
        const BlockView& block = view_.blocks[first];
        out_.insert(out_.end(), copied_from, block.whole.data);
        WriteMerged(first, last);
        copied_from = view_.blocks[last - 1].whole.end();
      }
      first = last;
    }
    out_.insert(out_.end(), copied_from, view_.bytes.end());
  }

 private:
  static BlockSpec SpecOf(const BlockView& block) {
    BlockSpec spec;
    spec.start = block.start;
    spec.length = block.length;
    spec.batch = block.key().stored.batch;
    spec.heads = block.key().stored.heads;
    spec.capacity = block.capacity();
    for (int side = 0; side < 2; ++side) {
      const StoredPayload& stored = block.sides[side].stored;
      spec.sides[side].encoding = {stored.dtype, stored.affine.first_scale, stored.affine.first_zero_point};
      spec.sides[side].width = stored.width;
    }
    return spec;
  }

  // True where the block consists of exactly the bytes that WriteBlock would write and its payloads' values: nothing
  // gets lost then when it is written anew.
  bool IsPlain(const BlockView& block) {
    for (const PayloadView& payload : block.sides) {
      if (payload.typed_field >= 0 || payload.stored.affine.axis >= 0) return false;
    }
    const BlockSpec spec = SpecOf(block);
    const BlockLayout layout = LayOutBlock(spec);
    if (layout.size != block.whole.size) return false;
    for (int side = 0; side < 2; ++side) {
      if (layout.payload_bytes[side] > 0 &&
          block.sides[side].stored.data != block.whole.data + layout.payload_offset[side]) {
        return false;
      }
    }
    scratch_.resize(layout.size);
    WriteBlock(spec, layout, scratch_.data());
    const size_t key_end = layout.payload_offset[0] + static_cast<size_t>(layout.payload_bytes[0]);
    const size_t value_end = layout.payload_offset[1] + static_cast<size_t>(layout.payload_bytes[1]);
    return SameBytes(scratch_.data(), block.whole.data, 0, layout.payload_offset[0]) &&
           SameBytes(scratch_.data(), block.whole.data, key_end, layout.payload_offset[1]) &&
           SameBytes(scratch_.data(), block.whole.data, value_end, layout.size);
  }

  static bool SameFormats(const BlockView& a, const BlockView& b) {
    for (int side = 0; side < 2; ++side) {
      const StoredPayload &x = a.sides[side].stored, &y = b.sides[side].stored;
      if (x.dtype != y.dtype || x.affine.first_scale != y.affine.first_scale ||
          x.affine.first_zero_point != y.affine.first_zero_point) {
        return false;
      }
    }
    return true;
  }

  // The end of the pages from `first` on that become one; first + 1 where it stays as it is.
  size_t EndOfGroup(size_t first) {
    int64_t tokens = view_.blocks[first].length;
    if (tokens >= block_size_ || !IsPlain(view_.blocks[first])) return first + 1;
    size_t last = first + 1;
    for (; last < view_.blocks.size(); ++last) {
      const BlockView& block = view_.blocks[last];
      if (block.length > block_size_ - tokens || block.whole.data != view_.blocks[last - 1].whole.end() ||
          !SameFormats(view_.blocks[first], block) || !IsPlain(block)) {
        break;
      }
      tokens += block.length;
    }
    return last;
  }

  void WriteMerged(size_t first, size_t last) {
    BlockSpec spec = SpecOf(view_.blocks[first]);
    spec.length = view_.blocks[last - 1].start + view_.blocks[last - 1].length - spec.start;
    spec.capacity = spec.length;
    const BlockLayout layout = LayOutBlock(spec);
    const size_t offset = out_.size();
    out_.resize(offset + layout.size);
    WriteBlock(spec, layout, out_.data() + offset);
    for (int side = 0; side < 2; ++side) {
      if (layout.payload_bytes[side] == 0) continue;  // the heads may be any number then
      const int64_t width = spec.sides[side].width;
      uint8_t* values = out_.data() + offset + layout.payload_offset[side];
      int64_t to = 0;
      for (int64_t head = 0; head < spec.batch * spec.heads; ++head) {
        for (size_t i = first; i < last; ++i) {
          const BlockView& block = view_.blocks[i];
          const StoredPayload& stored = block.sides[side].stored;
          const int64_t count = block.length * width;
          CopyValues(stored.dtype, stored.data, head * block.capacity() * width, count, values, to);
          to += count;
        }
      }
    }
  }

  const PagedCacheView& view_;
  const int64_t block_size_;
  std::vector<uint8_t>& out_;
  std::vector<uint8_t> scratch_;
};

}  // namespace

size_t MergePages(const std::string& op_name, uint8_t* run, size_t size, int64_t block_size) {
  if (block_size < 1) Fail(op_name, ": block_size: expected at least 1, got ", block_size);
  const PagedCacheView view = ParsePageRun({run, size}, op_name, "buffer");
  std::vector<uint8_t> merged;
  merged.reserve(size);
  Merger(view, block_size, &merged).Run();
  if (!merged.empty()) std::memcpy(run, merged.data(), merged.size());
  return merged.size();
}

}  // namespace onnx_ai_rt
