// The hot verbs, METH_FASTCALL: about 40 ns of call instead of pybind11's 200 to 400.
//
//   begin(group, op, kind=COLLECTIVE, flags=0, peer=-1, in_numel=0, out_numel=0, in_dtype=0,
//         out_dtype=0, reduce_op=0, timeout_ms=0, *, sizes=None, out_sizes=None, dtype=None)
//     group: handle of fr.group(); op: str, or id of intern()
//   end(ticket, result=OK, message=None)

#include "fastcall.hpp"

#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>

#include "compat.hpp"
#include "format/call_site.hpp"
#include "format/secrets.hpp"
#include "fr/fr.h"
#include "frames.hpp"

namespace fr {
namespace {

// ---------------------------------------------------------------- Ticket

struct Ticket {
  PyObject_HEAD fr_ticket value;
  std::uint32_t generation;
  bool ended;
};

// Dead tickets are kept for reuse, under the GIL. A build without the GIL allocates every one.
constexpr int kFreeMax = compat::kGil ? 64 : 0;
Ticket* g_free[64];
int g_free_count = 0;

void ticket_dealloc(PyObject* self) {
  if (g_free_count < kFreeMax) {
    g_free[g_free_count++] = reinterpret_cast<Ticket*>(self);
    return;
  }
  PyTypeObject* type = Py_TYPE(self);
  type->tp_free(self);
  Py_DECREF(reinterpret_cast<PyObject*>(type));
}

PyObject* ticket_seq(PyObject* self, void*) {
  return PyLong_FromUnsignedLongLong(reinterpret_cast<Ticket*>(self)->value.seq);
}

PyObject* ticket_recorded(PyObject* self, void*) {
  return PyBool_FromLong(reinterpret_cast<Ticket*>(self)->value.ticket != 0);
}

PyObject* ticket_untracked(PyObject* self, void*) {
  return PyBool_FromLong((reinterpret_cast<Ticket*>(self)->value.flags & FR_UNTRACKED) != 0);
}

PyObject* ticket_repr(PyObject* self) {
  const Ticket* t = reinterpret_cast<Ticket*>(self);
  return PyUnicode_FromFormat("<fr.Ticket group=%u seq=%llu%s>", t->value.group,
                              static_cast<unsigned long long>(t->value.seq),
                              t->value.ticket == 0 ? " not recorded" : "");
}

PyGetSetDef kTicketGetSet[] = {
    {"seq", ticket_seq, nullptr, "sequence number within the group (or P2P lane), from 1", nullptr},
    {"recorded", ticket_recorded, nullptr, "False when the recorder is off", nullptr},
    {"untracked", ticket_untracked, nullptr, "True when its end is never recorded", nullptr},
    {nullptr, nullptr, nullptr, nullptr, nullptr}};

PyType_Slot kTicketSlots[] = {
    {Py_tp_dealloc, reinterpret_cast<void*>(ticket_dealloc)},
    {Py_tp_repr, reinterpret_cast<void*>(ticket_repr)},
    {Py_tp_getset, kTicketGetSet},
    {Py_tp_doc, const_cast<char*>("One operation from begin() to end().")},
    {0, nullptr}};

PyType_Spec kTicketSpec = {"fr._fr.Ticket", sizeof(Ticket), 0,
                           Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION, kTicketSlots};

PyTypeObject* g_ticket_type = nullptr;

Ticket* new_ticket() noexcept {
  Ticket* t = nullptr;
  if (g_free_count > 0) {
    t = g_free[--g_free_count];
    // The type's reference was kept with the object.
    Py_SET_REFCNT(reinterpret_cast<PyObject*>(t), 1);
  } else {
    t = reinterpret_cast<Ticket*>(g_ticket_type->tp_alloc(g_ticket_type, 0));
  }
  if (t != nullptr) {
    t->value = fr_ticket{};
    t->ended = false;
    t->generation = fr_generation();
  }
  return t;
}

// The fr_ticket to use, or null when the object names nothing that can still be written to.
const fr_ticket* live(PyObject* object) noexcept {
  Ticket* t = reinterpret_cast<Ticket*>(object);
  return t->generation == fr_generation() ? &t->value : nullptr;
}

// ---------------------------------------------------------------- arguments

bool as_long(PyObject* object, long long* out) noexcept {
  *out = PyLong_AsLongLong(object);
  return *out != -1 || PyErr_Occurred() == nullptr;
}

// Id of a str (interned) or of an int (an id already).
bool as_string_id(PyObject* object, std::uint32_t* out) noexcept {
  if (PyUnicode_Check(object)) {
    Py_ssize_t bytes = 0;
    const char* text = PyUnicode_AsUTF8AndSize(object, &bytes);
    if (text == nullptr) {
      return false;
    }
    *out = fr_intern(text, static_cast<std::size_t>(bytes));
    return true;
  }
  long long value = 0;
  if (!as_long(object, &value)) {
    return false;
  }
  *out = static_cast<std::uint32_t>(value);
  return true;
}

struct Shape {
  std::uint32_t words[FR_MAX_SHAPE_WORDS];
  std::uint32_t n = 1;
  std::uint64_t numel = 0;
  std::uint32_t tensors = 0;
  bool cut = false;
  bool ok = true;  // false: a Python exception is set
};

std::uint32_t clip(unsigned long long v) noexcept {
  return v > 0xffffffffull ? 0xffffffffu : static_cast<std::uint32_t>(v);
}

void add_tensor(Shape& shape, PyObject* dims, std::uint8_t dtype) noexcept {
  PyObject* fast = PySequence_Fast(dims, "sizes must be a sequence of sequences of int");
  if (fast == nullptr) {
    shape.ok = false;
    return;
  }
  const Py_ssize_t ndim = PySequence_Fast_GET_SIZE(fast);
  ++shape.tensors;
  const bool fits = !shape.cut &&
                    shape.n + 1 + static_cast<std::size_t>(ndim) <=
                        static_cast<std::size_t>(FR_MAX_SHAPE_WORDS) &&
                    ndim < 256;
  shape.cut = !fits;
  if (fits) {
    shape.words[shape.n++] = static_cast<std::uint32_t>(ndim) | static_cast<std::uint32_t>(dtype)
                                                                    << 8;
  }
  std::uint64_t numel = 1;
  for (Py_ssize_t i = 0; i < ndim && shape.ok; ++i) {
    const unsigned long long d = PyLong_AsUnsignedLongLong(PySequence_Fast_GET_ITEM(fast, i));
    if (d == static_cast<unsigned long long>(-1) && PyErr_Occurred() != nullptr) {
      shape.ok = false;
      break;
    }
    numel *= d;
    if (fits) {
      shape.words[shape.n++] = clip(d);
    }
  }
  shape.numel += numel;
  Py_DECREF(fast);
}

// sizes: one tensor's [4, 3], or several [[4, 3], [2]]
void add_sizes(Shape& shape, PyObject* sizes, std::uint8_t dtype) noexcept {
  PyObject* fast = PySequence_Fast(sizes, "sizes must be a sequence");
  if (fast == nullptr) {
    shape.ok = false;
    return;
  }
  const Py_ssize_t n = PySequence_Fast_GET_SIZE(fast);
  if (n == 0 || PyLong_Check(PySequence_Fast_GET_ITEM(fast, 0))) {
    add_tensor(shape, fast, dtype);
  } else {
    for (Py_ssize_t i = 0; i < n && shape.ok; ++i) {
      add_tensor(shape, PySequence_Fast_GET_ITEM(fast, i), dtype);
    }
  }
  Py_DECREF(fast);
}

// "Float", "float32", torch.float32 (through str), or a code.
bool as_dtype(PyObject* object, std::uint8_t* out) noexcept {
  if (object == Py_None) {
    *out = 0;
    return true;
  }
  if (PyLong_Check(object)) {
    *out = static_cast<std::uint8_t>(PyLong_AsLong(object));
    return PyErr_Occurred() == nullptr;
  }
  static const struct {
    const char* alias;
    const char* name;
  } kAliases[] = {{"uint8", "Byte"},
                  {"int8", "Char"},
                  {"int16", "Short"},
                  {"int32", "Int"},
                  {"int64", "Long"},
                  {"float16", "Half"},
                  {"float32", "Float"},
                  {"float64", "Double"},
                  {"bool", "Bool"},
                  {"bfloat16", "BFloat16"},
                  {"half", "Half"},
                  {"float", "Float"},
                  {"double", "Double"},
                  {"int", "Int"},
                  {"long", "Long"},
                  {"complex64", "ComplexFloat"},
                  {"complex128", "ComplexDouble"}};
  PyObject* text = PyObject_Str(object);
  if (text == nullptr) {
    return false;
  }
  const char* name = PyUnicode_AsUTF8(text);
  if (name == nullptr) {
    Py_DECREF(text);
    return false;
  }
  if (std::strncmp(name, "torch.", 6) == 0) {
    name += 6;
  }
  for (const auto& a : kAliases) {
    if (std::strcmp(name, a.alias) == 0) {
      name = a.name;
      break;
    }
  }
  *out = 0;
  for (unsigned code = 1; code < 64; ++code) {
    if (std::strcmp(fr_dtype_name(static_cast<std::uint8_t>(code)), name) == 0) {
      *out = static_cast<std::uint8_t>(code);
      break;
    }
  }
  Py_DECREF(text);
  return true;
}

// ---------------------------------------------------------------- begin, end

__attribute__((cold, noinline)) bool begin_keywords(fr_op& op, Shape& shape, PyObject* const* args,
                                                    Py_ssize_t n, PyObject* kwnames) noexcept {
  PyObject* sizes = nullptr;
  PyObject* out_sizes = nullptr;
  PyObject* dtype = nullptr;
  const Py_ssize_t n_kw = PyTuple_GET_SIZE(kwnames);
  for (Py_ssize_t i = 0; i < n_kw; ++i) {
    const char* key = PyUnicode_AsUTF8(PyTuple_GET_ITEM(kwnames, i));
    PyObject* value = args[n + i];
    if (key == nullptr) {
      return false;
    }
    long long number = 0;
    const auto is = [key](const char* name) { return std::strcmp(key, name) == 0; };
    if (is("sizes")) {
      sizes = value == Py_None ? nullptr : value;
    } else if (is("out_sizes")) {
      out_sizes = value == Py_None ? nullptr : value;
    } else if (is("dtype")) {
      dtype = value;
    } else if (is("peer") || is("kind") || is("flags") || is("in_numel") || is("out_numel") ||
               is("reduce_op") || is("timeout_ms") || is("in_dtype") || is("out_dtype")) {
      if (!as_long(value, &number)) {
        return false;
      }
      if (is("peer")) {
        op.peer = static_cast<std::int32_t>(number);
      } else if (is("kind")) {
        op.kind = static_cast<std::uint16_t>(number);
      } else if (is("flags")) {
        op.flags |= static_cast<std::uint16_t>(number);
      } else if (is("in_numel")) {
        op.in_numel = static_cast<std::uint64_t>(number);
      } else if (is("out_numel")) {
        op.out_numel = static_cast<std::uint64_t>(number);
      } else if (is("reduce_op")) {
        op.reduce_op = static_cast<std::uint8_t>(number);
      } else if (is("in_dtype")) {
        op.in_dtype = static_cast<std::uint8_t>(number);
      } else if (is("out_dtype")) {
        op.out_dtype = static_cast<std::uint8_t>(number);
      } else {
        op.timeout_ms = clip(static_cast<unsigned long long>(number));
      }
    } else if (is("async_op")) {
      const int truth = PyObject_IsTrue(value);
      if (truth < 0) {
        return false;
      }
      op.flags |= static_cast<std::uint16_t>(truth != 0 ? FR_ASYNC : 0);
    } else {
      PyErr_Format(PyExc_TypeError, "begin() got an unexpected keyword argument '%s'", key);
      return false;
    }
  }
  if (dtype != nullptr) {
    if (!as_dtype(dtype, &op.in_dtype)) {
      return false;
    }
    op.out_dtype = op.in_dtype;
  }
  if (sizes != nullptr) {
    add_sizes(shape, sizes, op.in_dtype);
    const std::uint32_t n_in = shape.tensors;
    op.in_numel = shape.numel;
    if (shape.ok && out_sizes != nullptr) {
      add_sizes(shape, out_sizes, op.out_dtype);
      op.out_numel = shape.numel - op.in_numel;
      shape.words[0] = n_in | (shape.tensors - n_in) << 12;
    } else {
      op.out_numel = op.in_numel;
      shape.words[0] = n_in | n_in << 12 | FR_SHAPE_SAME_OUT;
    }
    if (!shape.ok) {
      return false;
    }
    shape.words[0] |= shape.cut ? static_cast<std::uint32_t>(FR_SHAPE_CUT) : 0u;
    op.shape = shape.words;
    op.n_shape = shape.n;
  }
  return true;
}

PyObject* begin(PyObject*, PyObject* const* args, Py_ssize_t n, PyObject* kwnames) {
  if (n < 2 || n > 11) {
    PyErr_SetString(PyExc_TypeError, "begin(group, op, ...) takes 2 to 11 positional arguments");
    return nullptr;
  }
  Ticket* ticket = new_ticket();
  if (ticket == nullptr) {
    return nullptr;
  }
  if (fr_enabled() == 0) {
    return reinterpret_cast<PyObject*>(ticket);
  }
  fr_op op{};
  op.struct_bytes = sizeof op;
  op.kind = FR_COLLECTIVE;
  op.peer = -1;
  op.stack = FR_STACK_CAPTURE;
  long long v[11] = {};
  bool ok = as_long(args[0], &v[0]) && as_string_id(args[1], &op.op);
  for (Py_ssize_t i = 2; ok && i < n; ++i) {
    ok = as_long(args[i], &v[i]);
  }
  op.group = static_cast<fr_group_t>(v[0]);
  if (n > 2) {
    op.kind = static_cast<std::uint16_t>(v[2]);
    op.flags = static_cast<std::uint16_t>(v[3]);
    op.peer = n > 4 ? static_cast<std::int32_t>(v[4]) : -1;
    op.in_numel = static_cast<std::uint64_t>(v[5]);
    op.out_numel = static_cast<std::uint64_t>(v[6]);
    op.in_dtype = static_cast<std::uint8_t>(v[7]);
    op.out_dtype = static_cast<std::uint8_t>(v[8]);
    op.reduce_op = static_cast<std::uint8_t>(v[9]);
    op.timeout_ms = static_cast<std::uint32_t>(v[10]);
  }
  if (ok && kwnames != nullptr && PyTuple_GET_SIZE(kwnames) > 0) {
    Shape shape;
    ok = begin_keywords(op, shape, args, n, kwnames);
    if (ok) {
      fr_begin(&op, &ticket->value);
    }
  } else if (ok) {
    fr_begin(&op, &ticket->value);
  }
  if (!ok) {
    Py_DECREF(reinterpret_cast<PyObject*>(ticket));
    return nullptr;
  }
  return reinterpret_cast<PyObject*>(ticket);
}

bool is_ticket(PyObject* object) {
  if (Py_TYPE(object) == g_ticket_type) {
    return true;
  }
  PyErr_Format(PyExc_TypeError, "expected the ticket that begin() returned, not %R", object);
  return false;
}

PyObject* end(PyObject*, PyObject* const* args, Py_ssize_t n) {
  if (n < 1 || n > 3) {
    PyErr_SetString(PyExc_TypeError, "end(ticket, result=OK, message=None) takes 1 to 3 arguments");
    return nullptr;
  }
  if (!is_ticket(args[0])) {
    return nullptr;
  }
  long long result = FR_OK;
  const char* message = nullptr;
  if (n > 1 && !as_long(args[1], &result)) {
    return nullptr;
  }
  if (n > 2 && args[2] != Py_None) {
    message = PyUnicode_AsUTF8(args[2]);
    if (message == nullptr) {
      return nullptr;
    }
  }
  Ticket* ticket = reinterpret_cast<Ticket*>(args[0]);
  if (const fr_ticket* t = live(args[0]); t != nullptr && !ticket->ended) {
    ticket->ended = true;
    fr_end(t, static_cast<int>(result), message);
  }
  Py_RETURN_NONE;
}

template <void (*F)(const fr_ticket*) noexcept>
PyObject* ticket_verb(PyObject*, PyObject* object) {
  if (!is_ticket(object)) {
    return nullptr;
  }
  if (const fr_ticket* t = live(object)) {
    F(t);
  }
  Py_RETURN_NONE;
}

// ---------------------------------------------------------------- breadcrumbs

PyObject* note(PyObject*, PyObject* text) {
  Py_ssize_t bytes = 0;
  const char* data = PyUnicode_AsUTF8AndSize(text, &bytes);
  if (data == nullptr) {
    return nullptr;
  }
  if (!silent_child()) {  // libfr would start with it
    fr_note(data, static_cast<std::size_t>(bytes));
  }
  Py_RETURN_NONE;
}

PyObject* without_secrets(PyObject*, PyObject* text) {
  Py_ssize_t bytes = 0;
  const char* data = PyUnicode_AsUTF8AndSize(text, &bytes);
  if (data == nullptr) {
    return nullptr;
  }
  std::string copy(data, static_cast<std::size_t>(bytes));
  copy.resize(fr::mask_secrets(copy.data(), copy.size()));
  if (copy == std::string_view(data, static_cast<std::size_t>(bytes))) {
    return Py_NewRef(text);  // the same object: its string id is known
  }
  return PyUnicode_DecodeUTF8(copy.data(), static_cast<Py_ssize_t>(copy.size()), "replace");
}

PyObject* is_library(PyObject*, PyObject* text) {
  Py_ssize_t bytes = 0;
  const char* data = PyUnicode_AsUTF8AndSize(text, &bytes);
  if (data == nullptr) {
    return nullptr;
  }
  return PyBool_FromLong(fr::is_library_file({data, static_cast<std::size_t>(bytes)}));
}

PyObject* step(PyObject*, PyObject* number) {
  long long value = 0;
  if (!as_long(number, &value)) {
    return nullptr;
  }
  if (!silent_child()) {
    fr_step(value);
  }
  Py_RETURN_NONE;
}

PyObject* span_begin(PyObject*, PyObject* name) {
  std::uint32_t id = 0;
  if (!as_string_id(name, &id)) {
    return nullptr;
  }
  fr_span_begin(id);
  Py_RETURN_NONE;
}

PyObject* span_end(PyObject*, PyObject*) {
  fr_span_end();
  Py_RETURN_NONE;
}

PyMethodDef kMethods[] = {
    {"begin", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(begin)),
     METH_FASTCALL | METH_KEYWORDS,
     "begin(group, op, kind=COLLECTIVE, flags=0, peer=-1, in_numel=0, out_numel=0, in_dtype=0, "
     "out_dtype=0, reduce_op=0, timeout_ms=0, *, sizes=None, out_sizes=None, dtype=None, "
     "async_op=False)\n\nRecords that this thread issues an operation; returns its ticket."},
    {"end", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(end)), METH_FASTCALL,
     "end(ticket, result=OK, message=None)\n\nThe operation ended. A second call does nothing."},
    {"started", ticket_verb<fr_started>, METH_O, "The backend began to work on the operation."},
    {"wait_begin", ticket_verb<fr_wait_begin>, METH_O, "A WAIT_ONLY operation is waited for."},
    {"wait_end", ticket_verb<fr_wait_end>, METH_O, "The wait ended."},
    {"note", note, METH_O, "Free text; the last one of each thread is shown in a verdict."},
    {"step", step, METH_O, "Number of the current iteration."},
    {"is_library_file", is_library, METH_O, "Of Python or a package, not the user's."},
    {"without_secrets", without_secrets, METH_O, "The text as evidence may keep it."},
    {"span_begin", span_begin, METH_O, "Opens a named span of this thread."},
    {"span_end", span_end, METH_NOARGS, "Closes this thread's innermost span."},
    {nullptr, nullptr, 0, nullptr}};

}  // namespace

bool add_fastcalls(PyObject* module) {
  g_ticket_type = reinterpret_cast<PyTypeObject*>(PyType_FromSpec(&kTicketSpec));
  if (g_ticket_type == nullptr) {
    return false;
  }
  Py_INCREF(reinterpret_cast<PyObject*>(g_ticket_type));
  if (PyModule_AddObject(module, "Ticket", reinterpret_cast<PyObject*>(g_ticket_type)) < 0) {
    return false;
  }
  return PyModule_AddFunctions(module, kMethods) == 0;
}

}  // namespace fr
