// The entry point that ONNX Runtime looks for, and the list of operators.
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "ort/boundary.h"
#include "ort/export.h"
#include "ort/operators.h"

namespace onnx_ai_rt {
namespace {

// Session config entries. The first is the user's, the second a mark that the library leaves.
constexpr const char* kOverrideEntry = "onnx_ai_rt.override_onnx_attention";
constexpr const char* kRegisteredEntry = "onnx_ai_rt.registered";

// A domain and its operators. ONNX Runtime keeps pointers to all of it.
struct Domain {
  explicit Domain(const std::string& name) : name(name) {
    Check(Api().CreateCustomOpDomain(name.c_str(), &handle));
    for (const OperatorSpec& spec : AllOperators()) {
      for (const std::string& domain : spec.domains) {
        if (domain != name) continue;
        for (const Variant& variant : spec.variants) {
          if (!CanDeclare(variant, Runtime())) continue;
          ops.push_back(std::make_unique<CustomOp>(spec, variant, name, Runtime()));
          Check(Api().CustomOpDomain_Add(handle, ops.back().get()));
        }
      }
    }
  }

  std::string name;
  OrtCustomOpDomain* handle = nullptr;
  std::vector<std::unique_ptr<CustomOp>> ops;
};

// Built at the first registration and never freed: sessions may end after static objects are destroyed.
Domain& DomainOf(const std::string& name) {
  static std::mutex mutex;
  static auto* domains = new std::map<std::string, std::unique_ptr<Domain>>();
  const std::lock_guard<std::mutex> lock(mutex);
  std::unique_ptr<Domain>& domain = (*domains)[name];
  if (!domain) domain = std::make_unique<Domain>(name);
  return *domain;
}

bool HasEntry(const OrtSessionOptions* options, const char* key) {
  int has = 0;
  Check(Api().HasSessionConfigEntry(options, key, &has));
  return has != 0;
}

bool WantsOverride(const OrtSessionOptions* options) {
  if (!HasEntry(options, kOverrideEntry)) return true;
  size_t size = 0;
  Check(Api().GetSessionConfigEntry(options, kOverrideEntry, nullptr, &size));
  std::string value(size, '\0');
  Check(Api().GetSessionConfigEntry(options, kOverrideEntry, value.data(), &size));
  value.resize(size == 0 ? 0 : size - 1);
  if (value != "0" && value != "1") {
    throw RuntimeFailure(ORT_INVALID_ARGUMENT, std::string("onnx_ai_rt: session config entry ") + kOverrideEntry +
                                                   " must be 0 or 1, got '" + value + "'");
  }
  return value == "1";
}

}  // namespace

const std::vector<OperatorSpec>& AllOperators() {
  static const auto* operators = new std::vector<OperatorSpec>{
      AttentionOperator(),
      QuantizePagedCacheOperator(),
      PagedAttentionOperator(),
      PagedCacheLengthOperator(),
  };
  return *operators;
}

}  // namespace onnx_ai_rt

// ONNX Runtime calls this once for each SessionOptions that the library is registered with.
extern "C" ONNX_AI_RT_EXPORT OrtStatus* ORT_API_CALL RegisterCustomOps(OrtSessionOptions* options,
                                                                       const OrtApiBase* base) {
  using namespace onnx_ai_rt;  // NOLINT(google-build-using-namespace): one function, at the boundary
  try {
    SetApi(base);
  } catch (const std::exception& error) {
    const OrtApi* oldest = base->GetApi(1);
    return oldest == nullptr ? nullptr : oldest->CreateStatus(ORT_FAIL, error.what());
  }
  return Guarded([&] {
    // A domain that is added twice would make every session of these options fail.
    if (HasEntry(options, kRegisteredEntry)) return;
    if (WantsOverride(options)) Check(Api().AddCustomOpDomain(options, DomainOf("").handle));
    Check(Api().AddCustomOpDomain(options, DomainOf("ai.rt").handle));
    Check(Api().AddSessionConfigEntry(options, kRegisteredEntry, "1"));
  });
}
