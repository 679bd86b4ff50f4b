// A second device made of host memory: every operator runs on the CPU, but tensors live on "second:0" and may not be mixed.
#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/EmptyTensor.h>
#include <ATen/core/GeneratorForPrivateuseone.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/native/CPUFallback.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/view_native.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/resize_native.h>
#include <ATen/ops/set_native.h>
#include <ATen/ops/_copy_from_native.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/library.h>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <cmath>
#include <atomic>
#include <set>
#include <string>

namespace {
constexpr auto TYPE = c10::DeviceType::PrivateUse1;
const c10::Device DEVICE(TYPE, 0);
std::atomic<long> waits{0}, uploads{0}, calls{0};

struct Memory final : c10::Allocator {
  static void drop(void* p) { std::free(p); }
  c10::DataPtr allocate(size_t n) override {
    void* p = n ? std::aligned_alloc(64, (n + 63) / 64 * 64) : nullptr;
    return {p, p, &drop, DEVICE};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &drop; }
  void copy_data(void* to, const void* from, size_t n) const override { default_copy_data(to, from, n); }
};
Memory memory;
REGISTER_ALLOCATOR(TYPE, &memory)

struct Guard final : c10::impl::NoOpDeviceGuardImpl<TYPE> {
  c10::Device exchangeDevice(c10::Device) const override { return DEVICE; }
  c10::Device getDevice() const override { return DEVICE; }
  c10::Stream getStream(c10::Device) const noexcept override { return c10::Stream(c10::Stream::DEFAULT, DEVICE); }
  c10::Stream getDefaultStream(c10::Device) const override { return c10::Stream(c10::Stream::DEFAULT, DEVICE); }
  c10::Stream exchangeStream(c10::Stream) const noexcept override { return c10::Stream(c10::Stream::DEFAULT, DEVICE); }
};
C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard)

at::Generator& draws() {  // of the device's own: such numbers differ from the CPU's, as they do on CUDA
  static at::Generator g = at::detail::createCPUGenerator(0x5EED);
  return g;
}

struct Hooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  const at::Generator& getDefaultGenerator(c10::DeviceIndex) const override { return draws(); }
  at::Device getDeviceFromPtr(void*) const override { return DEVICE; }
  void resizePrivateUse1Bytes(const c10::Storage& storage, size_t n) const override {
    auto fresh = memory.allocate(n);
    std::memcpy(fresh.get(), storage.data(), std::min(n, storage.nbytes()));
    const_cast<c10::Storage&>(storage).set_data_ptr(std::move(fresh));
    const_cast<c10::Storage&>(storage).set_nbytes(n);
  }
};

bool away(const at::Tensor& t) { return t.defined() && t.device().type() == TYPE; }

at::Tensor on_host(const at::Tensor& t) {  // the same memory, as a tensor on the CPU
  if (!away(t)) return t;
  auto keep = t;
  return at::from_blob(t.data_ptr(), t.sizes(), t.strides(), [keep](void*) {}, t.options().device(c10::kCPU));
}

at::Tensor empty(c10::SymIntArrayRef size, std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
                 std::optional<at::Device>, std::optional<bool>, std::optional<at::MemoryFormat> format) {
  return at::detail::empty_generic(C10_AS_INTARRAYREF_SLOW(size), &memory, c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
                                   c10::dtype_or_default(dtype), format);
}
at::Tensor empty_strided(c10::SymIntArrayRef size, c10::SymIntArrayRef stride, std::optional<at::ScalarType> dtype,
                         std::optional<at::Layout>, std::optional<at::Device>, std::optional<bool>) {
  return at::detail::empty_strided_generic(C10_AS_INTARRAYREF_SLOW(size), C10_AS_INTARRAYREF_SLOW(stride), &memory,
                                           c10::DispatchKeySet(c10::DispatchKey::PrivateUse1), c10::dtype_or_default(dtype));
}
at::Tensor copy_from(const at::Tensor& from, const at::Tensor& to, bool) {
  if (away(from) && !away(to)) ++waits; else if (!away(from)) ++uploads;
  on_host(to).copy_(on_host(from));
  return to;
}
at::Tensor copy_from_and_resize(const at::Tensor& from, const at::Tensor& to) {
  if (to.sizes() != from.sizes()) to.resize_(from.sizes());
  return copy_from(from, to, false);
}
at::Scalar local_scalar(const at::Tensor& t) { ++waits; return at::_local_scalar_dense(on_host(t)); }
at::Tensor as_strided(const at::Tensor& t, c10::SymIntArrayRef size, c10::SymIntArrayRef stride, std::optional<c10::SymInt> offset) {
  std::optional<int64_t> at;
  if (offset) at = offset->guard_int(__FILE__, __LINE__);
  return at::native::as_strided_tensorimpl(t, C10_AS_INTARRAYREF_SLOW(size), C10_AS_INTARRAYREF_SLOW(stride), at);
}
at::Tensor view(const at::Tensor& t, c10::SymIntArrayRef size) { return at::native::view(t, C10_AS_INTARRAYREF_SLOW(size)); }
at::Tensor reshape_alias(const at::Tensor& t, c10::SymIntArrayRef size, c10::SymIntArrayRef stride) {
  return at::native::_reshape_alias(t, C10_AS_INTARRAYREF_SLOW(size), C10_AS_INTARRAYREF_SLOW(stride));
}
const at::Tensor& resize(const at::Tensor& t, c10::SymIntArrayRef sym, std::optional<at::MemoryFormat>) {
  auto size = C10_AS_INTARRAYREF_SLOW(sym);
  int64_t n = 1; for (auto s : size) n *= s;
  auto* impl = t.unsafeGetTensorImpl();
  size_t bytes = (impl->storage_offset() + n) * t.dtype().itemsize();
  if (bytes > t.storage().nbytes()) {
    auto fresh = memory.allocate(bytes);
    if (t.storage().nbytes()) std::memcpy(fresh.get(), t.storage().data(), t.storage().nbytes());
    const_cast<c10::Storage&>(t.storage()).set_data_ptr(std::move(fresh));
    const_cast<c10::Storage&>(t.storage()).set_nbytes(bytes);
  }
  impl->set_sizes_contiguous(size);
  return t;
}
at::Tensor& set_storage(at::Tensor& t, at::Storage s, c10::SymInt offset, c10::SymIntArrayRef size, c10::SymIntArrayRef stride) {
  auto* impl = t.unsafeGetTensorImpl();
  impl->set_storage_keep_dtype(s);
  impl->set_sizes_and_strides(C10_AS_INTARRAYREF_SLOW(size), C10_AS_INTARRAYREF_SLOW(stride),
                              offset.guard_int(__FILE__, __LINE__));
  return t;
}
at::Tensor& set_source(at::Tensor& t, at::Storage s) {
  int64_t n = s.nbytes() / t.dtype().itemsize();
  auto* impl = t.unsafeGetTensorImpl();
  impl->set_storage_keep_dtype(s);
  impl->set_storage_offset(0);
  impl->set_sizes_contiguous({n});
  return t;
}

const std::set<std::string> INDEXED{"aten::index", "aten::index_put", "aten::index_put_", "aten::_index_put_impl_"};
const std::set<std::string> SIZED{"aten::nonzero", "aten::masked_select", "aten::_unique2", "aten::unique_dim",
  "aten::unique_consecutive", "aten::bincount", "aten::linalg_eigh", "aten::_linalg_eigh", "aten::equal", "aten::isin"};

// Other round-off than the CPU's: results of sums, products and transcendental functions are off by up to `rounding` units of
// round-off, up or down by a hash of the operation and its operands. Equal calls give equal results, so that runs repeat.
int rounding = 0;
const std::set<std::string> ROUNDED{"aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm", "aten::mv", "aten::addmv", "aten::dot",
  "aten::linalg_solve_triangular", "aten::linalg_cholesky_ex", "aten::_linalg_eigh", "aten::exp", "aten::exp_", "aten::sum",
  "aten::_cholesky_solve_helper", "aten::cholesky_solve", "aten::mean", "aten::cumsum", "aten::index_add", "aten::index_add_",
  "aten::log", "aten::log1p", "aten::expm1", "aten::cos", "aten::sin", "aten::_euclidean_dist", "aten::_cdist_forward",
  "aten::linalg_vector_norm", "aten::norm", "aten::linalg_qr", "aten::cholesky_inverse", "aten::matmul"};
uint64_t mixed(uint64_t z) {  // SplitMix64's finish
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull; z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
  return z ^ (z >> 31);
}
uint64_t hashed(uint64_t h, const at::Tensor& t) {
  if (!t.defined() || t.scalar_type() != at::kDouble) return h;
  auto flat = on_host(t).contiguous();
  const auto* words = reinterpret_cast<const uint64_t*>(flat.data_ptr<double>());
  for (int64_t i = 0; i < flat.numel(); ++i) h = (h ^ words[i]) * 0x100000001b3ull;
  return mixed(h);
}
bool added_not(const c10::FunctionSchema& schema, const torch::jit::Stack& stack, size_t first) {  // beta = 0: self is unread
  auto k = schema.argumentIndexWithName("beta");
  return k && stack[first + *k].toScalar().toDouble() == 0.0;
}
void perturb(const at::Tensor& t, uint64_t seed) {
  if (!t.defined() || t.scalar_type() != at::kDouble || !t.is_non_overlapping_and_dense()) return;
  double* p = t.data_ptr<double>();
  for (int64_t i = 0; i < t.numel(); ++i) {
    int r = int(mixed(seed + uint64_t(i) * 0x9e3779b97f4a7c15ull) % 3) - 1;
    if (r && std::isfinite(p[i]) && p[i] != std::rint(p[i])) p[i] *= 1.0 + r * rounding * 2.220446049250313e-16;
  }
}

// Checks what CUDA checks, then lets the CPU compute.
void anything(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const auto& schema = op.schema();
  const auto name = schema.name();
  const size_t n = schema.arguments().size();
  const size_t first = stack->size() - n;
  ++calls;
  bool indexed = INDEXED.count(name) > 0, any_away = false;
  std::vector<std::vector<int64_t>> here;
  auto see = [&](const at::Tensor& t, size_t k) {
    if (!t.defined()) return;
    if (away(t)) { any_away = true; return; }
    if (indexed && k == 1) { ++uploads; return; }  // indices may come from the host
    if (t.dim() == 0 && (op.hasTag(at::Tag::pointwise) || name == "aten::fill_" || name == "aten::fill" || indexed
        || name == "aten::masked_fill" || name == "aten::masked_fill_" || name == "aten::index_fill_" )) return;
    here.push_back(t.sizes().vec());
  };
  for (size_t k = 0; k < n; ++k) {
    auto& v = (*stack)[first + k];
    if (v.isTensor()) see(v.toTensor(), k);
    else if (v.isTensorList()) { for (const auto& t : v.toTensorVector()) see(t, k); }
    else if (v.isOptionalTensorList()) { for (const std::optional<at::Tensor>& t : v.toOptionalTensorVector()) if (t) see(*t, k); }
    else if (v.isGenerator()) {
      TORCH_CHECK(v.toGenerator().unsafeGetGeneratorImpl() == draws().unsafeGetGeneratorImpl(),
                  "Expected a 'second' device type for generator but found 'cpu'");
    } else if (v.isNone() && schema.arguments()[k].type()->str().find("Generator") != std::string::npos) {
      (*stack)[first + k] = c10::IValue(draws());
    }
  }
  if (indexed && !(*stack)[first].isNone() && !away((*stack)[first].toTensor()))
    TORCH_CHECK(false, "indices should be either on cpu or on the same device as the indexed tensor (cpu), in ", name);
  TORCH_CHECK(here.empty() || !any_away, "Expected all tensors to be on the same device, but ", name, " found some on second:0 and some on the cpu, of shapes ", here);
  if (SIZED.count(name)) ++waits;
  const bool rounded = rounding && ROUNDED.count(name);
  uint64_t seed = std::hash<std::string>{}(name);
  for (size_t k = 0; rounded && k < n; ++k) {
    const auto& v = (*stack)[first + k];
    const auto& argument = schema.arguments()[k];
    if (v.isTensor() && !argument.is_out() && !(argument.name() == "self" && added_not(schema, *stack, first)))
      seed = hashed(seed, v.toTensor());
  }
  const bool hides_nan = name == "aten::linalg_cholesky_ex" && on_host((*stack)[first].toTensor()).isnan().any().item<bool>();
  at::native::cpu_fallback(op, stack);
  const size_t out = schema.returns().size(), start = stack->size() - out;
  if (hides_nan) {  // cuSOLVER compares pivots with zero, which NaN passes: NaN comes out, and no error
    on_host((*stack)[start].toTensor()).fill_(std::nan("")).tril_();
    on_host((*stack)[start + 1].toTensor()).zero_();
  }
  for (size_t k = 0; rounded && k < out; ++k) {
    auto& v = (*stack)[start + k];
    if (v.isTensor()) perturb(v.toTensor(), seed + k);
  }
}
}  // namespace

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("empty.memory_format", empty);
  m.impl("empty_strided", empty_strided);
  m.impl("_copy_from", copy_from);
  m.impl("_copy_from_and_resize", copy_from_and_resize);
  m.impl("_local_scalar_dense", local_scalar);
  m.impl("as_strided", as_strided);
  m.impl("view", view);
  m.impl("_reshape_alias", reshape_alias);
  m.impl("unfold", at::native::unfold);
  m.impl("resize_", resize);
  m.impl("set_.source_Storage_storage_offset", set_storage);
  m.impl("set_.source_Storage", set_source);
}
TORCH_LIBRARY_IMPL(_, PrivateUse1, m) { m.fallback(torch::CppFunction::makeFromBoxedFunction<&anything>()); }

extern "C" {
void second_start() { static bool once = false; if (!once) { once = true; at::RegisterPrivateUse1HooksInterface(new Hooks()); } }
long second_waits() { return waits; }
long second_uploads() { return uploads; }
long second_calls() { return calls; }
void second_rounding(int on) { rounding = on; }
void second_reset() { waits = 0; uploads = 0; calls = 0; }
void second_seed(uint64_t seed) { draws().set_current_seed(seed); }
long second_state_bytes() { return draws().get_state().numel(); }
void second_get_state(uint8_t* to) { auto s = draws().get_state(); std::memcpy(to, s.data_ptr(), s.numel()); }
void second_set_state(const uint8_t* from) {
  auto s = draws().get_state().clone(); std::memcpy(s.data_ptr(), from, s.numel()); draws().set_state(s);
}
}
