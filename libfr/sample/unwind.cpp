// unwind.cpp - reads call frame information (.eh_frame) and walks copied stacks with it. Every number
// read from a file or a stack is checked: a corrupt one ends the walk, it never faults.
#include "sample/unwind.hpp"

#include <algorithm>
#include <cstring>
#include <iterator>

#include "sample/dwarf.hpp"

namespace fr {
namespace {

// Reads numbers from a buffer; past its end everything is 0 and ok() is false.
class Cursor {
 public:
  Cursor(const unsigned char* data, std::size_t bytes, u64 address) noexcept
      : at_(data), end_(data + bytes), data_(data), address_(address) {}
  bool ok() const noexcept { return ok_; }
  bool more() const noexcept { return ok_ && at_ < end_; }
  u64 address() const noexcept { return address_ + static_cast<u64>(at_ - data_); }
  const unsigned char* data() const noexcept { return at_; }
  std::size_t left() const noexcept { return static_cast<std::size_t>(end_ - at_); }

  template <class T>
  T get() noexcept {
    T value{};
    if (left() < sizeof value) {
      ok_ = false;
      return value;
    }
    std::memcpy(&value, at_, sizeof value);
    at_ += sizeof value;
    return value;
  }
  u64 uleb() noexcept {
    u64 value = 0;
    for (u32 shift = 0;; shift += 7) {
      const u8 byte = get<u8>();
      value |= shift < 64 ? u64{byte & 0x7fu} << shift : 0;
      if ((byte & 0x80) == 0 || !ok_) {
        return value;
      }
    }
  }
  i64 sleb() noexcept {
    u64 value = 0;
    u32 shift = 0;
    for (;;) {
      const u8 byte = get<u8>();
      value |= shift < 64 ? u64{byte & 0x7fu} << shift : 0;
      shift += 7;
      if ((byte & 0x80) == 0 || !ok_) {
        if (shift < 64 && (byte & 0x40) != 0) {
          value |= ~u64{0} << shift;
        }
        return static_cast<i64>(value);
      }
    }
  }
  void skip(u64 bytes) noexcept {
    if (bytes > left()) {
      ok_ = false;
      at_ = end_;
    } else {
      at_ += bytes;
    }
  }
  // DW_EH_PE_*: absolute and pc-relative; nothing else occurs in .eh_frame.
  u64 encoded(u8 encoding) noexcept {
    if (encoding == 0xff) {
      return 0;
    }
    const u64 here = address();
    u64 value = 0;
    switch (encoding & 0x0f) {
      case 0x00:
      case 0x04:
      case 0x0c:
        value = get<u64>();
        break;
      case 0x01:
        value = uleb();
        break;
      case 0x09:
        value = static_cast<u64>(sleb());
        break;
      case 0x02:
        value = get<u16>();
        break;
      case 0x0a:
        value = static_cast<u64>(static_cast<i64>(get<std::int16_t>()));
        break;
      case 0x03:
        value = get<u32>();
        break;
      case 0x0b:
        value = static_cast<u64>(static_cast<i64>(get<i32>()));
        break;
      default:
        ok_ = false;
    }
    if ((encoding & 0x70) == 0x10) {
      value += here;
    } else if ((encoding & 0x70) != 0) {
      ok_ = false;
    }
    return value;  // the indirect bit only concerns personalities, which are skipped
  }

 private:
  const unsigned char* at_;
  const unsigned char* end_;
  const unsigned char* data_;
  u64 address_;
  bool ok_ = true;
};

u64 bare(u64 pc) noexcept {
#if defined(__aarch64__)
  return pc & 0x0000ffffffffffffull;  // without the signature of pointer authentication
#else
  return pc;
#endif
}

}  // namespace

Registers Registers::of(const ucontext_t& context) noexcept {
  Registers out{};
#if defined(__x86_64__)
  static constexpr int kOrder[] = {REG_RAX, REG_RDX, REG_RCX, REG_RBX, REG_RSI, REG_RDI,
                                   REG_RBP, REG_RSP, REG_R8,  REG_R9,  REG_R10, REG_R11,
                                   REG_R12, REG_R13, REG_R14, REG_R15, REG_RIP};
  for (u32 i = 0; i < kCount; ++i) {
    out.r[i] = static_cast<u64>(context.uc_mcontext.gregs[kOrder[i]]);
  }
  out.pc = out.r[kReturn];
#elif defined(__aarch64__)
  for (u32 i = 0; i < 31; ++i) {
    out.r[i] = context.uc_mcontext.regs[i];
  }
  out.r[kSp] = context.uc_mcontext.sp;
  out.pc = context.uc_mcontext.pc;
#else
  (void)context;
#endif
  return out;
}

void Unwinder::forget() noexcept {
  for (Cached& c : cache_) {
    c.pc = 0;
  }
}

bool Unwinder::load(u64 address, u64& value) const noexcept {
  if (address >= stack_.base && address + 8 <= stack_.base + stack_.bytes) {
    std::memcpy(&value, stack_.data + (address - stack_.base), 8);
    return true;
  }
  return peek(address, &value, 8);
}

// Binary search in .eh_frame_hdr: address of the entry (FDE) that may cover pc, 0 none.
u64 Unwinder::find_entry(const Module& m, u64 pc) noexcept {
  unsigned char head[20];
  if (m.eh_frame_hdr == 0 || !peek(m.eh_frame_hdr, head, sizeof head) || head[0] != 1 ||
      head[3] != 0x3b) {
    return 0;
  }
  Cursor c(head + 4, sizeof head - 4, m.eh_frame_hdr + 4);
  c.encoded(head[1]);
  const u64 count = c.encoded(head[2]);
  if (!c.ok() || count == 0 || count > (1u << 26)) {
    return 0;
  }
  const u64 table = c.address();
  const auto offset = static_cast<i64>(pc - m.eh_frame_hdr);
  u64 low = 0;
  u64 high = count;
  i32 pair[2] = {};
  while (high - low > 1) {
    const u64 middle = low + (high - low) / 2;
    if (!peek(table + middle * 8, pair, sizeof pair)) {
      return 0;
    }
    (pair[0] <= offset ? low : high) = middle;
  }
  if (!peek(table + low * 8, pair, sizeof pair) || pair[0] > offset) {
    return 0;
  }
  return m.eh_frame_hdr + static_cast<u64>(static_cast<i64>(pair[1]));
}

// Executes call frame instructions until `location` passes pc: row then has the rules that hold at pc.
bool Unwinder::run(const unsigned char* code, std::size_t bytes, u64 address, u64 pc, u64& location,
                   Row& row, const Row& initial) noexcept {
  Cursor c(code, bytes, address);
  u32 depth = 0;
  const auto set = [&row](u64 reg, Kind kind, i64 value) {
    if (reg < Registers::kCount) {
      row.regs[reg] = {kind, value};
    }
  };
  const auto block = [&c] {
    const u64 where = c.address();  // of its length
    c.skip(c.uleb());
    return static_cast<i64>(where);
  };
  const auto scaled = [this](u64 n) { return static_cast<i64>(n) * data_align_; };
  while (c.more()) {
    const u8 op = c.get<u8>();
    const u64 low = op & 0x3f;
    u64 reg = 0;
    u64 advance = 0;
    switch (op & kCfaPrimary) {
      case kCfaAdvanceLoc:
        location += low * code_align_;
        if (location > pc) {
          return c.ok();
        }
        continue;
      case kCfaOffset:
        set(low, kOffset, scaled(c.uleb()));
        continue;
      case kCfaRestore:
        if (low < Registers::kCount) {
          row.regs[low] = initial.regs[low];
        }
        continue;
      default:
        break;
    }
    switch (op) {
      case kCfaNop:
        break;
      case kCfaSetLoc:
        location = c.encoded(encoding_);
        if (location > pc) {
          return c.ok();
        }
        break;
      case kCfaAdvanceLoc1:
        advance = c.get<u8>();
        break;
      case kCfaAdvanceLoc2:
        advance = c.get<u16>();
        break;
      case kCfaAdvanceLoc4:
        advance = c.get<u32>();
        break;
      case kCfaOffsetExtended:
        reg = c.uleb();
        set(reg, kOffset, scaled(c.uleb()));
        break;
      case kCfaRestoreExtended:
        reg = c.uleb();
        if (reg < Registers::kCount) {
          row.regs[reg] = initial.regs[reg];
        }
        break;
      case kCfaUndefined:
        set(c.uleb(), kUndefined, 0);
        break;
      case kCfaSameValue:
        set(c.uleb(), kSame, 0);
        break;
      case kCfaRegister:
        reg = c.uleb();
        set(reg, kRegister, static_cast<i64>(c.uleb()));
        break;
      case kCfaRememberState:
        if (depth == std::size(saved_)) {
          return false;
        }
        saved_[depth++] = row;
        break;
      case kCfaRestoreState:
        if (depth == 0) {
          return false;
        }
        row = saved_[--depth];
        break;
      case kCfaDefCfa:
        row.cfa_register = static_cast<u32>(c.uleb());
        row.cfa = {kOffset, static_cast<i64>(c.uleb())};
        break;
      case kCfaDefCfaRegister:
        row.cfa_register = static_cast<u32>(c.uleb());
        break;
      case kCfaDefCfaOffset:
        row.cfa = {kOffset, static_cast<i64>(c.uleb())};
        break;
      case kCfaDefCfaExpression:
        row.cfa = {kExpression, block()};
        break;
      case kCfaExpression:
        reg = c.uleb();
        set(reg, kExpression, block());
        break;
      case kCfaOffsetExtendedSf:
        reg = c.uleb();
        set(reg, kOffset, c.sleb() * data_align_);
        break;
      case kCfaDefCfaSf:
        row.cfa_register = static_cast<u32>(c.uleb());
        row.cfa = {kOffset, c.sleb() * data_align_};
        break;
      case kCfaDefCfaOffsetSf:
        row.cfa = {kOffset, c.sleb() * data_align_};
        break;
      case kCfaValOffset:
        reg = c.uleb();
        set(reg, kValOffset, scaled(c.uleb()));
        break;
      case kCfaValOffsetSf:
        reg = c.uleb();
        set(reg, kValOffset, c.sleb() * data_align_);
        break;
      case kCfaValExpression:
        reg = c.uleb();
        set(reg, kValExpression, block());
        break;
      case kCfaNegateRaState:  // signatures are cut off anyway
        break;
      case kCfaGnuArgsSize:
        c.uleb();
        break;
      case kCfaGnuNegativeOffsetExtended:
        reg = c.uleb();
        set(reg, kOffset, -scaled(c.uleb()));
        break;
      default:
        return false;
    }
    location += advance * code_align_;
    if (advance != 0 && location > pc) {
      return c.ok();
    }
  }
  return c.ok();
}

bool Unwinder::make_row(u64 entry, u64 pc, Row& row) noexcept {
  const std::size_t entry_got = peek_some(entry, entry_, sizeof entry_);
  Cursor head(entry_, entry_got, entry);
  const u32 length = head.get<u32>();
  const u64 id_at = head.address();
  const u32 to_common = head.get<u32>();
  if (!head.ok() || length == 0xffffffff || to_common == 0 || length > entry_got - 4) {
    return false;
  }
  const u64 common = id_at - to_common;
  const std::size_t common_got = peek_some(common, common_, sizeof common_);
  Cursor c(common_, common_got, common);
  const u32 common_length = c.get<u32>();
  if (c.get<u32>() != 0 || !c.ok() || common_length > common_got - 4) {
    return false;
  }
  const u8 version = c.get<u8>();
  const char* augmentation = reinterpret_cast<const char*>(c.data());
  const std::size_t augmentation_bytes = strnlen(augmentation, c.left());
  c.skip(augmentation_bytes + 1);
  code_align_ = c.uleb();
  data_align_ = c.sleb();
  row = {};
  row.return_register = version == 1 ? c.get<u8>() : static_cast<u32>(c.uleb());
  encoding_ = 0;
  const bool sized = augmentation_bytes > 0 && augmentation[0] == 'z';
  u64 instructions = c.address();
  if (sized) {
    const u64 bytes = c.uleb();
    instructions = c.address() + bytes;
    for (std::size_t i = 1; i < augmentation_bytes; ++i) {
      switch (augmentation[i]) {
        case 'R':
          encoding_ = c.get<u8>();
          break;
        case 'P': {
          const u8 encoding = c.get<u8>();
          c.encoded(encoding & 0x7f);
          break;
        }
        case 'L':
          c.get<u8>();
          break;
        case 'S':
          row.signal_frame = true;
          break;
        default:
          break;
      }
    }
  } else if (augmentation_bytes != 0) {
    return false;
  }
  if (!c.ok() || row.return_register >= Registers::kCount) {
    return false;
  }
  const u64 begin = head.encoded(encoding_);
  const u64 range = head.encoded(encoding_ & 0x0f);
  if (!head.ok() || pc < begin || pc >= begin + range) {
    return false;
  }
  if (sized) {
    head.skip(head.uleb());
  }
  u64 location = begin;
  const u64 common_end = common + 4 + common_length;
  if (instructions > common_end || !head.ok()) {
    return false;
  }
  const Row none{};
  if (!run(common_ + (instructions - common), common_end - instructions, instructions, ~u64{0},
           location, row, none)) {
    return false;
  }
  const Row initial = row;
  location = begin;
  const u64 here = head.address();
  return run(head.data(), entry + 4 + length - here, here, pc, location, row, initial);
}

const Unwinder::Row* Unwinder::find_row(u64 pc) noexcept {
  Cached& slot = cache_[(pc ^ pc >> 8) & (kCached - 1)];
  if (slot.pc == pc) {
    return &slot.row;
  }
  const Module* m = modules_->find(pc);
  const u64 entry = m != nullptr ? find_entry(*m, pc) : 0;
  slot.pc = 0;
  if (entry == 0 || !make_row(entry, pc, slot.row)) {
    return nullptr;
  }
  slot.pc = pc;
  return &slot.row;
}

namespace {

// Operations on the two topmost values; the result replaces `a`. False for an unknown one.
bool combine(u8 op, u64& a, u64 b) noexcept {
  switch (op) {
    case kOpAnd:
      a &= b;
      return true;
    case kOpMinus:
      a -= b;
      return true;
    case kOpMul:
      a *= b;
      return true;
    case kOpOr:
      a |= b;
      return true;
    case kOpPlus:
      a += b;
      return true;
    case kOpShl:
      a = b < 64 ? a << b : 0;
      return true;
    case kOpShr:
      a = b < 64 ? a >> b : 0;
      return true;
    case kOpGe:
      a = static_cast<i64>(a) >= static_cast<i64>(b) ? 1 : 0;
      return true;
    default:
      return false;
  }
}

}  // namespace

// The subset of DWARF expressions that procedure linkage tables and signal returns need.
bool Unwinder::evaluate(u64 expression, const Registers& r, u64 cfa, bool push_cfa,
                        u64& value) noexcept {
  unsigned char code[256];
  const std::size_t got = peek_some(expression, code, sizeof code);
  Cursor c(code, got, expression);
  const u64 bytes = c.uleb();
  if (!c.ok() || bytes > c.left()) {
    return false;
  }
  Cursor e(c.data(), bytes, c.address());
  u64 stack[16] = {};
  u32 depth = 0;
  bool ok = true;
  const auto push = [&](u64 x) {
    if (depth < std::size(stack)) {
      stack[depth++] = x;
    } else {
      ok = false;
    }
  };
  const auto pop = [&]() -> u64 {
    if (depth == 0) {
      ok = false;
      return 0;
    }
    return stack[--depth];
  };
  if (push_cfa) {
    push(cfa);
  }
  while (ok && e.more()) {
    const u8 op = e.get<u8>();
    if (op >= kOpLit0 && op <= kOpLit31) {
      push(u64{op} - kOpLit0);
      continue;
    }
    if (op >= kOpBreg0 && op <= kOpBreg31) {
      const u32 reg = u32{op} - kOpBreg0;
      const i64 offset = e.sleb();
      push(reg < Registers::kCount ? r.r[reg] + static_cast<u64>(offset) : 0);
      continue;
    }
    u64 a = 0;
    u64 b = 0;
    switch (op) {
      case kOpDeref:
        a = pop();
        ok = ok && load(a, b);
        push(b);
        break;
      case kOpConst1u:
        push(e.get<u8>());
        break;
      case kOpConst1s:
        push(static_cast<u64>(static_cast<i64>(e.get<std::int8_t>())));
        break;
      case kOpConst2u:
        push(e.get<u16>());
        break;
      case kOpConst2s:
        push(static_cast<u64>(static_cast<i64>(e.get<std::int16_t>())));
        break;
      case kOpConst4u:
        push(e.get<u32>());
        break;
      case kOpConst4s:
        push(static_cast<u64>(static_cast<i64>(e.get<i32>())));
        break;
      case kOpConstu:
        push(e.uleb());
        break;
      case kOpConsts:
        push(static_cast<u64>(e.sleb()));
        break;
      case kOpDup:
        a = pop();
        push(a);
        push(a);
        break;
      case kOpSwap:
        a = pop();
        b = pop();
        push(a);
        push(b);
        break;
      case kOpPlusUconst:
        a = e.uleb();
        push(pop() + a);
        break;
      case kOpNop:
        break;
      default:
        b = pop();
        a = pop();
        if (!combine(op, a, b)) {
          return false;
        }
        push(a);
    }
  }
  value = depth > 0 ? stack[depth - 1] : 0;
  return ok && e.ok() && depth > 0;
}

Unwinder::Step Unwinder::step(Registers& r, bool innermost) noexcept {
  // A return address may lie beyond its function: the call is looked up.
  const Row* row = find_row(innermost ? r.pc : r.pc - 1);
  if (row == nullptr) {
    // No call frame information: generated code, or a jump to nowhere.
    u64 frame[2] = {};
    const u64 sp = r.r[Registers::kSp];
    const u64 fp = r.r[Registers::kFp];
    if (innermost && modules_->find(r.pc) == nullptr) {
#if defined(__x86_64__)
      if (load(sp, frame[1]) && modules_->find(frame[1]) != nullptr) {
        r.r[Registers::kSp] = sp + 8;
        r.pc = frame[1];
        return Step::kFrame;
      }
#else
      if (modules_->find(bare(r.r[Registers::kReturn])) != nullptr) {
        r.pc = bare(r.r[Registers::kReturn]);
        return Step::kFrame;
      }
#endif
    }
    if (fp <= sp || fp % 8 != 0 || fp - sp > (16u << 20) || !load(fp, frame[0]) ||
        !load(fp + 8, frame[1]) || modules_->find(bare(frame[1])) == nullptr) {
      return Step::kGone;
    }
    r.r[Registers::kFp] = frame[0];
    r.r[Registers::kSp] = fp + 16;
    r.pc = bare(frame[1]);
    return Step::kFrame;
  }
  u64 cfa = 0;
  if (row->cfa.kind == kExpression) {
    if (!evaluate(static_cast<u64>(row->cfa.value), r, 0, false, cfa)) {
      return Step::kGone;
    }
  } else if (row->cfa_register >= Registers::kCount) {
    return Step::kGone;
  } else {
    cfa = r.r[row->cfa_register] + static_cast<u64>(row->cfa.value);
  }
  Registers next = r;
  next.r[Registers::kSp] = cfa;
  for (u32 i = 0; i < Registers::kCount; ++i) {
    const Rule& rule = row->regs[i];
    u64 value = 0;
    switch (rule.kind) {
      case kSame:
        continue;
      case kUndefined:
        if (i == row->return_register) {
          return Step::kEnd;
        }
        next.r[i] = 0;
        continue;
      case kOffset:
        if (!load(cfa + static_cast<u64>(rule.value), value)) {
          return Step::kGone;
        }
        break;
      case kValOffset:
        value = cfa + static_cast<u64>(rule.value);
        break;
      case kRegister:
        value = rule.value < Registers::kCount ? r.r[rule.value] : 0;
        break;
      case kExpression:
        if (!evaluate(static_cast<u64>(rule.value), r, cfa, true, value) || !load(value, value)) {
          return Step::kGone;
        }
        break;
      case kValExpression:
        if (!evaluate(static_cast<u64>(rule.value), r, cfa, true, value)) {
          return Step::kGone;
        }
        break;
    }
    next.r[i] = value;
  }
  const bool signal_frame = row->signal_frame;
  next.pc = bare(next.r[row->return_register]);
  if (next.pc == 0) {
    return Step::kEnd;
  }
  if (!signal_frame &&
      (cfa < r.r[Registers::kSp] || (cfa == r.r[Registers::kSp] && next.pc == r.pc))) {
    return Step::kGone;  // going in circles
  }
  r = next;
  return signal_frame ? Step::kSignalFrame : Step::kFrame;
}

u32 Unwinder::walk(Registers r, const StackCopy& stack, u64* pcs, u32 limit, bool* whole) noexcept {
  stack_ = stack;
  *whole = false;
  bool innermost = true;  // or interrupted: its address is the next instruction's
  u32 n = 0;
  while (n < limit) {
    pcs[n++] = innermost ? r.pc : r.pc - 1;
    const Step s = step(r, innermost);
    if (s == Step::kEnd) {
      *whole = true;
      break;
    }
    if (s == Step::kGone) {
      break;
    }
    innermost = s == Step::kSignalFrame;
  }
  return n;
}

}  // namespace fr
