// Feeds damaged caches to the reader and to QuantizePagedCache: `make fuzz`. Built with sanitizers, it stops at the
// first access out of bounds, undefined operation or broken promise.
//
//     cache_fuzzer SECONDS SEED FILE...
//
// mutates the files, and keeps what is a valid cache with pages as a start for more. With clang, LLVMFuzzerTestOneInput
// serves libFuzzer as well: compile with -fsanitize=fuzzer and -DONNX_AI_RT_LIBFUZZER.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "cache/merge_pages.h"
#include "cache/paged_cache.h"
#include "cache/quantize_cache.h"
#include "kernels/error.h"

namespace onnx_ai_rt {
namespace {

using Bytes = std::vector<uint8_t>;

constexpr DType kFormats[] = {DType::kInt4,     DType::kFloat, DType::kInt8,  DType::kHalf, DType::kUInt2,
                              DType::kBFloat16, DType::kInt2,  DType::kUInt8, DType::kUInt4};

[[noreturn]] void Broken(const char* promise, const std::string& detail) {
  std::fprintf(stderr, "broken: %s: %s\n", promise, detail.c_str());
  std::abort();
}

// All pages in another format; empty where a value cannot be converted, or the pages together are too large to try.
Bytes Convert(const Bytes& bytes, size_t pages, DType key, DType value) {
  std::vector<int64_t> indices(pages);
  std::iota(indices.begin(), indices.end(), int64_t{0});
  SerialExecutor executor;
  const QuantizeCachePlan plan = PlanQuantizeCache("fuzz", {bytes.data(), bytes.size()}, indices.data(),
                                                   static_cast<int64_t>(pages), {key, 0.5f, 1}, {value, 2.0f, 0});
  if (plan.output_size > 64 * bytes.size() + 4096)
    Broken("a page grows at most 16 times", std::to_string(plan.output_size));
  Bytes out(plan.output_size);
  try {
    RunQuantizeCache(plan, out.data(), executor);
  } catch (const InvalidArgument&) {
    return {};
  }
  return out;
}

// Neighbours in one format become one page: as many tokens in no more bytes.
void Merge(Bytes bytes, int64_t tokens) {
  const size_t size = MergePages("fuzz", bytes.data(), bytes.size(), 1 + static_cast<int64_t>(bytes.size() % 9));
  if (size > bytes.size()) Broken("merging makes a cache no longer", std::to_string(size));
  try {
    const PagedCacheView view = ParsePagedCache({bytes.data(), size}, "fuzz", "merged");
    if (view.tokens != tokens) Broken("merging keeps all tokens", std::to_string(view.tokens));
  } catch (const InvalidArgument& error) {
    Broken("a merged cache is valid", error.what());
  }
}

enum class Verdict { kRefused, kEmpty, kPages };

Verdict TryOne(const Bytes& bytes) {
  size_t pages;
  int64_t tokens;
  try {
    const PagedCacheView view = ParsePagedCache({bytes.data(), bytes.size()}, "fuzz", "cache");
    pages = view.blocks.size();
    tokens = view.tokens;
  } catch (const InvalidArgument&) {
    return Verdict::kRefused;
  }
  if (pages == 0) return Verdict::kEmpty;
  const size_t choice = bytes.size() % std::size(kFormats);
  const Bytes converted = Convert(bytes, pages, kFormats[choice], kFormats[(choice * 2 + 1) % std::size(kFormats)]);
  Merge(bytes, tokens);
  if (converted.empty()) return Verdict::kPages;
  Merge(converted, tokens);
  try {
    const PagedCacheView view = ParsePagedCache({converted.data(), converted.size()}, "fuzz", "result");
    if (view.blocks.size() != pages || view.tokens != tokens)
      Broken("pages and tokens stay", std::to_string(view.tokens));
  } catch (const InvalidArgument& error) {
    Broken("a converted cache is valid", error.what());
  }
  Convert(converted, pages, DType::kFloat, DType::kFloat);
  return Verdict::kPages;
}

class Mutator {
 public:
  Mutator(uint64_t seed, std::vector<Bytes> files) : random_(seed), files_(files.size()), corpus_(std::move(files)) {}

  Bytes Next() {
    Bytes bytes = Below(2) == 0 ? corpus_[Below(files_)] : Any();
    for (size_t i = 0, count = 1 + Below(4); i < count; ++i) Change(&bytes);
    return bytes;
  }

  void Keep(const Bytes& bytes) {
    if (bytes.size() > 4096) return;
    if (corpus_.size() < 2000)
      corpus_.push_back(bytes);
    else
      corpus_[Below(corpus_.size())] = bytes;
  }

 private:
  size_t Below(size_t limit) { return random_() % std::max<size_t>(limit, 1); }
  const Bytes& Any() { return corpus_[Below(corpus_.size())]; }

  void Change(Bytes* bytes) {
    const size_t at = Below(bytes->size() + 1);
    const auto place = bytes->begin() + static_cast<std::ptrdiff_t>(at);
    const size_t left = bytes->size() - at;
    static constexpr uint8_t kEdges[] = {0, 1, 2, 0x0a, 0x0b, 0x0c, 0x1a, 0x22, 0x7f, 0x80, 0xff};
    switch (Below(7)) {
      case 0:
        if (left != 0) *place ^= static_cast<uint8_t>(1u << Below(8));
        break;
      case 1:
        if (left != 0) *place = kEdges[Below(std::size(kEdges))];
        break;
      case 2: bytes->insert(place, kEdges[Below(std::size(kEdges))]); break;
      case 3: bytes->erase(place, place + static_cast<std::ptrdiff_t>(Below(std::min<size_t>(left, 8) + 1))); break;
      case 4: bytes->resize(at); break;
      case 5: {  // a part of it again
        const Bytes part(place, place + static_cast<std::ptrdiff_t>(Below(left + 1)));
        bytes->insert(bytes->begin() + static_cast<std::ptrdiff_t>(Below(bytes->size() + 1)), part.begin(), part.end());
        break;
      }
      default: {  // the end of another one
        const Bytes& other = Any();
        bytes->resize(at);
        bytes->insert(bytes->end(), other.begin() + static_cast<std::ptrdiff_t>(Below(other.size() + 1)), other.end());
      }
    }
  }

  std::mt19937_64 random_;
  size_t files_;  // these stay at the front of the corpus
  std::vector<Bytes> corpus_;
};

}  // namespace
}  // namespace onnx_ai_rt

#ifdef ONNX_AI_RT_LIBFUZZER
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  onnx_ai_rt::TryOne({data, data + size});
  return 0;
}
#else
int main(int argc, char** argv) {
  using onnx_ai_rt::Bytes;
  if (argc < 4) {
    std::fprintf(stderr, "usage: %s SECONDS SEED FILE...\n", argv[0]);
    return 2;
  }
  std::vector<Bytes> corpus;
  for (int i = 3; i < argc; ++i) {
    std::ifstream file(argv[i], std::ios::binary);
    corpus.emplace_back(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
    if (onnx_ai_rt::TryOne(corpus.back()) == onnx_ai_rt::Verdict::kRefused) {
      std::fprintf(stderr, "%s is no valid cache\n", argv[i]);
      return 1;
    }
  }
  onnx_ai_rt::Mutator mutator(std::strtoull(argv[2], nullptr, 10), corpus);
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(std::atoi(argv[1]));
  size_t tried = 0;
  size_t with_pages = 0;
  while (std::chrono::steady_clock::now() < end) {
    const Bytes bytes = mutator.Next();
    ++tried;
    if (onnx_ai_rt::TryOne(bytes) != onnx_ai_rt::Verdict::kPages) continue;
    ++with_pages;
    mutator.Keep(bytes);
  }
  std::printf("%zu inputs, %zu of them valid caches with pages; nothing broken\n", tried, with_pages);
  return 0;
}
#endif
