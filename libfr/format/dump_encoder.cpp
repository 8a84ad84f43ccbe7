// The encoder of a recording process: pack_dump() through zstd, in memory mapped beforehand.
#define ZSTD_STATIC_LINKING_ONLY
#include <sys/mman.h>
#include <zstd.h>

#include "format/encode.hpp"
#include "format/schema.hpp"

namespace fr {

namespace {

constexpr int kLevel = 1;
constexpr int kWindowLog = 17;  // each step up doubles a buffer that every rank holds resident

ZSTD_parameters zstd_parameters() {
  ZSTD_parameters p = ZSTD_getParams(kLevel, 0, 0);
  p.cParams.windowLog = kWindowLog;
  p.fParams.contentSizeFlag = 0;
  p.fParams.checksumFlag = 1;
  return p;
}

// populate: touched now, so that a dump under memory pressure does not need fresh pages.
void* map(std::size_t bytes, bool populate) {
  void* p = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                 MAP_PRIVATE | MAP_ANONYMOUS | (populate ? MAP_POPULATE : MAP_NORESERVE), -1, 0);
  return p != MAP_FAILED ? p : nullptr;
}

}  // namespace

void DumpEncoder::compress(const char* data, std::size_t bytes, bool last) noexcept {
  ZSTD_inBuffer in{data, bytes, 0};
  while (!overflow_) {
    ZSTD_outBuffer out{out_, out_size_, out_used_};
    const std::size_t rest = ZSTD_compressStream2(static_cast<ZSTD_CCtx*>(zstd_), &out, &in,
                                                  last ? ZSTD_e_end : ZSTD_e_continue);
    out_used_ = out.pos;
    overflow_ =
        ZSTD_isError(rest) || (out.pos == out.size && (in.pos < in.size || (last && rest != 0)));
    if (last ? rest == 0 : in.pos == in.size) {
      break;
    }
  }
}

bool DumpEncoder::init(u32 n_records) noexcept {
  const ZSTD_parameters parameters = zstd_parameters();
  workspace_bytes_ = ZSTD_estimateCStreamSize_usingCParams(parameters.cParams);
  workspace_ = map(workspace_bytes_, true);
  in_ = static_cast<char*>(map(ByteSink::kChunkBytes, true));
  // never reached: 256 B per record and the tables, uncompressed
  out_size_ = std::size_t{n_records} * 256 + (6u << 20);
  out_ = static_cast<char*>(map(out_size_, false));
  per_group_ = static_cast<schema::KeptOfGroup*>(map(sizeof(schema::KeptOfGroup) * kGroups, true));
  if (workspace_ == nullptr || in_ == nullptr || out_ == nullptr || per_group_ == nullptr) {
    return false;
  }
  zstd_ = ZSTD_initStaticCStream(workspace_, workspace_bytes_);
  return zstd_ != nullptr;
}

DumpEncoder::Bytes DumpEncoder::encode(const View& view, const DumpFacts& facts) noexcept {
  if (zstd_ == nullptr || !view.ok()) {
    return {nullptr, 0};
  }
  auto* stream = static_cast<ZSTD_CCtx*>(zstd_);
  ZSTD_CCtx_reset(stream, ZSTD_reset_session_and_parameters);
  const ZSTD_parameters parameters = zstd_parameters();
  ZSTD_CCtx_setParameter(stream, ZSTD_c_compressionLevel, kLevel);
  ZSTD_CCtx_setParameter(stream, ZSTD_c_windowLog, static_cast<int>(parameters.cParams.windowLog));
  ZSTD_CCtx_setParameter(stream, ZSTD_c_checksumFlag, 1);
  out_used_ = 0;
  overflow_ = false;
  ByteSink sink{in_, this, [](void* context, const char* data, std::size_t bytes) noexcept {
                  static_cast<DumpEncoder*>(context)->compress(data, bytes, false);
                }};
  pack_dump(sink, view, facts, per_group_);
  sink.flush();
  compress(nullptr, 0, true);
  raw_bytes_ = sink.total;
  if (overflow_) {
    return {nullptr, 0};
  }
  return {out_, out_used_};
}

}  // namespace fr
