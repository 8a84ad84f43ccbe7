/* fr.h - the C ABI of libfr, the flight recorder for distributed GPU training.
 *
 * Everything that records goes through these functions: the Python package, the adapter compiled
 * against the installed torch, NCCL hooks, and your own C or C++ code. The header needs only
 * <stdint.h>; libfr links neither torch, CUDA, NCCL nor Python.
 *
 * Temperature of the calls:
 *   hot   noexcept, lock-free, no allocation, no system call, no GIL, no device call.
 *   warm  may take a lock of libfr's own when something is seen for the first time.
 *   cold  may do anything but end or crash the process.
 *
 * Life of one operation:
 *
 *     fr_group_t  world = fr_group(&info);                  // warm, once per process group
 *     uint32_t    op    = fr_intern("all_reduce", 10);      // warm, once per name
 *     fr_ticket   t;
 *     fr_begin(&(fr_op){.struct_bytes = sizeof(fr_op), .group = world, .op = op,
 *                       .kind = FR_COLLECTIVE, .peer = -1, .stack = FR_STACK_CAPTURE}, &t);
 *     ... the operation ...
 *     fr_end(&t, FR_OK, 0);
 */
#ifndef FR_FR_H_
#define FR_FR_H_

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#define FR_NOEXCEPT noexcept
#else
#define FR_NOEXCEPT
#endif

#define FR_API __attribute__((visibility("default")))

/* Grows by one whenever a function or a struct member is added; nothing is ever removed. */
#define FR_ABI_VERSION 8

/* ------------------------------------------------------------------ the recorder */

/* Starts the recorder of this process: reads the options, maps the ring, starts the watchdog.
 * Cold, idempotent, callable from any thread. Returns 1 when recording, 0 when switched off
 * (FR_ENABLE=0, FR_BUFFER_SIZE=0); never fails otherwise: without a mappable FR_SHM_DIR the ring
 * lives in anonymous memory, which fr_status says. */
FR_API int fr_start(void) FR_NOEXCEPT;

/* 1 while this process records. Hot (one load). 0 in a forked child until it starts its own. */
FR_API int fr_enabled(void) FR_NOEXCEPT;

/* Gives this process's identity where the environment does not (no torchrun, Slurm or MPI
 * variables): used by the default process group, before or after fr_start. Values < 0 leave the
 * known ones. Warm. */
FR_API void fr_set_identity(int32_t rank, int32_t world_size, int32_t local_rank) FR_NOEXCEPT;

/* Tells jobs apart that neither FR_JOB nor a launcher's variables name: store is the address where
 * the ranks meet (host:port, or a path), program what they run. The same on all ranks; "" or NULL
 * leaves what is known, the program's default is the base name of the command. Before fr_start;
 * later it has no effect. Cold. */
FR_API void fr_set_job(const char* store, const char* program) FR_NOEXCEPT;

/* Tells the evidence of this run of the job from that of runs before and after it under the same
 * name: a random number that all ranks share, 0 is unknown. After fr_start; a later call replaces
 * it (a process that joins another run). Any thread, lock-free. */
FR_API void fr_set_run(uint64_t run) FR_NOEXCEPT;

/* ------------------------------------------------------------------ groups and names */

typedef uint32_t fr_group_t; /* 0: no group (records of the process itself) */

typedef struct fr_group_info {
  uint32_t struct_bytes;  /* sizeof(fr_group_info) */
  int32_t n_ranks;        /* members; 0 = unknown */
  int32_t own_rank;       /* own rank within the group; -1 = not a member or unknown */
  uint32_t flags;         /* 0 */
  const char* name;       /* unique within the process among living groups, e.g. "0" */
  const char* desc;       /* e.g. "default_pg"; may be NULL */
  const char* backend;    /* e.g. "gloo", "cpu:gloo,cuda:nccl"; may be NULL */
  const int32_t* ranks;   /* global ranks, n_ranks of them in group order; NULL = unknown */
} fr_group_info;

/* Registers a group and records its creation. A name registered again is a new instance with
 * sequence numbers from 1 (PyTorch reuses names after destroy_process_group). Warm.
 * Returns 0 when the table is full (counted; such records keep going to group 0) or not recording. */
FR_API fr_group_t fr_group(const fr_group_info* info) FR_NOEXCEPT;
/* The living group of that name, or 0. Warm. */
FR_API fr_group_t fr_group_find(const char* name) FR_NOEXCEPT;
/* Marks the group destroyed; its evidence stays. Warm. */
FR_API void fr_group_destroyed(fr_group_t group) FR_NOEXCEPT;

/* Interns a string for good, returns its id; 0 when the table is full (counted) or not recording.
 * Lock-free for a string seen before, warm otherwise. Ids stay valid until fr_start() is called in a
 * forked child; fr_generation() tells. */
FR_API uint32_t fr_intern(const char* text, size_t bytes) FR_NOEXCEPT;
/* Grows with every recorder started in this process image: 1 for the first; 0 while nothing is
 * recorded, so also in a forked child that has not started its own. Ids, groups and tickets of
 * another generation are not to be used. Hot. */
FR_API uint32_t fr_generation(void) FR_NOEXCEPT;

/* ------------------------------------------------------------------ stacks */

#define FR_MAX_FRAMES 32

typedef struct fr_frame {
  uint32_t file;  /* string id */
  uint32_t func;  /* string id */
  uint32_t line;  /* 1-based; 0 = unknown */
} fr_frame;

/* Interns a call stack, innermost frame first, at most FR_MAX_FRAMES (the rest is cut). Warm.
 * Returns its id; 0 = not captured (table full, counted). */
FR_API uint32_t fr_stack(const fr_frame* frames, uint32_t n) FR_NOEXCEPT;

/* Whoever knows the language of the calling thread (the Python module does) returns the id of
 * the calling thread's stack, 0 when it has none. Called by fr_begin on FR_STACK_CAPTURE. Must be
 * noexcept, must not block or take the GIL. NULL removes it. */
typedef uint32_t (*fr_stack_provider)(void);
FR_API void fr_set_stack_provider(fr_stack_provider provider) FR_NOEXCEPT;

/* The id of the calling thread's stack as FR_STACK_CAPTURE records it, for a record that is made later
 * or elsewhere; 0 = not captured. Hot. */
FR_API uint32_t fr_stack_here(void) FR_NOEXCEPT;

/* ------------------------------------------------------------------ stacks of all threads */

/* At a hang libfr interrupts every thread with a signal of its own. Only an interpreter's module
 * knows the frames that a thread runs in the interpreter; it hands in these functions. */
typedef struct fr_python_frame {
  uint64_t frame; /* addresses within the interpreter, and where in the code the frame is */
  uint64_t code;
  uint64_t where;
  uint32_t flags; /* enum fr_python_frame_flags */
  uint32_t reserved;
} fr_python_frame;

enum fr_python_frame_flags {
  FR_FRAME_ENTRY = 1 /* native code called this one: the last frame of one run of the evaluator */
};

enum fr_python_facts {
  FR_PYTHON_THREAD = 1,   /* the interpreter knows this thread */
  FR_PYTHON_HOLDS_GIL = 2
};

typedef struct fr_python {
  uint32_t struct_bytes; /* sizeof(fr_python) */
  uint32_t reserved;
  uint64_t eval_begin; /* the evaluator's code: native frames in it are those of Python functions */
  uint64_t eval_end;
  /* Frames of the calling thread, innermost first; *total may exceed what was stored: the first
   * limit - 64 and the last 64 then. Runs in a signal handler: async-signal-safe, no lock, no GIL. */
  uint32_t (*walk)(fr_python_frame* frames, uint32_t limit, uint32_t* total, uint32_t* facts);
  /* File, function (UTF-8) and line of a frame, later and on another thread; the process may have
   * gone on, so nothing is believed before it was read with fr_peek. 0: it is no frame any more. */
  int (*name)(const fr_python_frame* frame, char* file, size_t file_bytes, char* function,
              size_t function_bytes, uint32_t* line);
  /* Variables of a frame, NULL allowed: "name\0value\0"... Returns the bytes used. */
  size_t (*variables)(const fr_python_frame* frame, char* out, size_t bytes);
  uint64_t eval_more_begin; /* another part of the evaluator's code; 0 none */
  uint64_t eval_more_end;
  /* The exception that the calling thread handles now, 0 none. In the signal handler, like walk. */
  uint64_t (*handled)(void);
  /* "ValueError: bad batch, at train.py:23 in load", later, like name. Returns the bytes used. */
  size_t (*exception)(uint64_t exception, char* out, size_t bytes);
  /* Later, like name: innermost frames of the main thread of another process, which fr_peek reads
   * meanwhile. The interpreter of that process lies `shift` bytes beyond ours. Until the next call
   * name reads that process too; limit 0: it reads our own again. */
  uint32_t (*other)(int64_t shift, fr_python_frame* frames, uint32_t limit);
} fr_python;
FR_API void fr_set_python(const fr_python* python) FR_NOEXCEPT;

/* Copies memory that may not be there; returns how much was readable. Async-signal-safe. */
FR_API size_t fr_peek(uint64_t address, void* to, size_t bytes) FR_NOEXCEPT;

/* ------------------------------------------------------------------ operations */

enum fr_kind {
  FR_COLLECTIVE = 1, /* seq counts per group, from 1 */
  FR_SEND = 2,       /* seq counts per (group, peer, direction), from 1 */
  FR_RECV = 3,
  FR_LIFECYCLE = 4,  /* init_process_group, new_group, destroy_process_group, ... : a host call that
                        begins and ends; counted apart from collectives */
  FR_NOTE = 5,       /* text breadcrumb */
  FR_SPAN = 6,       /* named stretch of user code */
  FR_STEP = 7,       /* iteration number in seq */
  FR_SAMPLE = 8,     /* what a collective took or gave: its number in seq, fr_sample_word in shape */
  FR_STORE = 9       /* a write to the ranks' store: op is call and key, in_numel how many writes this
                        call site of the process has made */
};

/* Shape words of FR_SAMPLE. Counts and sums have 64 bits: the low word, then the high one. */
enum fr_sample_word {
  FR_SAMPLE_SIDE = 0,   /* enum fr_sample_side */
  FR_SAMPLE_NAN = 2,    /* elements; of a complex number both parts */
  FR_SAMPLE_INF = 4,
  FR_SAMPLE_SUM = 6,      /* of the data as 64-bit words w(i), modulo 2^64 */
  FR_SAMPLE_WEIGHTED = 8, /* of w(i) * (2 i + 1) */
  FR_SAMPLE_WORDS = 10
};
enum fr_sample_side {
  FR_SAMPLE_INPUT = 0,
  FR_SAMPLE_OUTPUT = 1,      /* every member has its own */
  FR_SAMPLE_SAME_OUTPUT = 2, /* every member must have the same */
  FR_SAMPLE_MISSED = 3       /* samples were due from here on and not taken: no counts, no sums */
};

enum fr_flags {
  FR_ASYNC = 1,      /* async_op=True: the caller does not wait at once */
  FR_WAIT_ONLY = 2,  /* completion is seen only inside wait(): in flight for the watchdog only
                        between fr_wait_begin and fr_wait_end */
  FR_UNTRACKED = 4,  /* completion is not seen: state unknown after enqueue; in flight only where
                        somebody says so, between fr_wait_begin and fr_wait_end */
  FR_COALESCED = 8,  /* one operation over several tensors that the caller issued separately */
  FR_CAPTURED = 16,  /* recorded into a graph of the device, not run; its replays are not records */
  FR_COUNTED = 128   /* in fr_ticket.flags only, set by fr_begin: the frontiers count the operation */
};

/* dtype codes: torch's ScalarType + 1; 0 = unknown. fr_dtype_name() gives "Float", "BFloat16"...
 * reduce op codes: torch's ReduceOp + 1: SUM AVG PRODUCT MIN MAX BAND BOR BXOR PREMUL_SUM; 0 = none. */

/* Shape words: sizes, dtypes and split sizes of one operation as 32-bit words.
 *   word 0: number of inputs (bits 0-11) | number of outputs (12-23) | flags (24-31)
 *   per input, then per output: one word ndim | dtype << 8, then ndim words, one per dimension
 *   with FR_SHAPE_SPLITS: n, then n input split sizes; n, then n output split sizes
 * Dimensions and splits of 2^32-1 and more are stored as 0xffffffff. */
enum fr_shape_flags {
  FR_SHAPE_SAME_OUT = 1u << 24,  /* outputs look like the inputs; no words for them */
  FR_SHAPE_CUT = 1u << 25,       /* did not fit FR_MAX_SHAPE_WORDS: what is missing is at the end */
  FR_SHAPE_SPLITS = 1u << 26
};
#define FR_MAX_SHAPE_WORDS 512

typedef struct fr_op {
  uint32_t struct_bytes;   /* sizeof(fr_op) */
  fr_group_t group;
  uint32_t op;             /* fr_intern("all_reduce") */
  uint16_t kind;           /* enum fr_kind */
  uint16_t flags;          /* enum fr_flags */
  int32_t peer;            /* rank within the group: peer of a send/recv, root of a collective; -1 none */
  uint8_t in_dtype;        /* of the first input; 0 unknown */
  uint8_t out_dtype;
  uint8_t reduce_op;
  uint8_t reserved0;
  uint32_t timeout_ms;     /* 0 unknown */
  uint32_t stack;          /* stack id, 0 none, FR_STACK_CAPTURE: ask the provider */
  uint64_t in_numel;       /* elements over all inputs */
  uint64_t out_numel;
  uint64_t seq;            /* FR_STEP and FR_SPAN only; operations are counted by fr */
  const uint32_t* shape;   /* shape words, NULL = not captured */
  uint32_t n_shape;        /* words, at most FR_MAX_SHAPE_WORDS */
  uint32_t reserved1;
} fr_op;

#define FR_STACK_CAPTURE 0xffffffffu

/* Names one operation until it ends. All members are fr's; {0} names nothing, and every call on it
 * is a no-op. */
typedef struct fr_ticket {
  uint64_t ticket; /* position in the ring + 1; all ones: found no slot; 0: not recording */
  uint64_t seq;
  uint32_t group;
  uint16_t lane;   /* P2P lane row */
  uint8_t kind;
  uint8_t flags;
} fr_ticket;

enum fr_result {
  FR_OK = 1,
  FR_FAILED = 2,   /* with a message */
  FR_RELEASED = 3, /* the handle was dropped, the outcome was not seen */
  FR_REFUSED = 4   /* failed, with a message, over an argument: nothing was sent, nobody waits */
};

/* Records that the calling thread issues an operation. Hot. *out is {0} when not recording. */
FR_API void fr_begin(const fr_op* op, fr_ticket* out) FR_NOEXCEPT;
/* The backend began to work on it. Hot. */
FR_API void fr_started(const fr_ticket* t) FR_NOEXCEPT;
/* It ended. Hot with FR_OK; FR_FAILED keeps the message (NULL allowed) and wakes the watchdog, which
 * dumps; FR_REFUSED keeps the message only: programs catch such errors and go on. Once per ticket:
 * tickets are plain copies, so a second end is counted like the first, and the group then looks as
 * if another operation in flight had ended. */
FR_API void fr_end(const fr_ticket* t, int result, const char* message) FR_NOEXCEPT;
/* A FR_WAIT_ONLY operation is now waited for: always a pair around the wait. Where the wait ends the
 * operation, fr_end comes between the two. Hot. */
FR_API void fr_wait_begin(const fr_ticket* t) FR_NOEXCEPT;
FR_API void fr_wait_end(const fr_ticket* t) FR_NOEXCEPT;

/* ------------------------------------------------------------------ breadcrumbs */

/* Free text (the first 200 bytes are kept). Starts the recorder, except in a forked child. Hot but for
 * the first note of a thread. */
FR_API void fr_note(const char* text, size_t bytes) FR_NOEXCEPT;
FR_API void fr_step(int64_t step) FR_NOEXCEPT;
/* name: string id. Spans of one thread nest; deeper than 8 are counted, not kept. */
FR_API void fr_span_begin(uint32_t name) FR_NOEXCEPT;
FR_API void fr_span_end(void) FR_NOEXCEPT;

/* ------------------------------------------------------------------ dumps, status, exit */

/* Writes this rank's dump now; the watchdog thread does it while the caller waits, at most 30 s.
 * Copies the path to path[0..path_bytes). Returns 1, or 0 when nothing could be written (or not
 * recording). Cold. */
FR_API int fr_dump(const char* reason, char* path, size_t path_bytes) FR_NOEXCEPT;

/* Gets every dump after it is safe on disk, on a thread of its own, one at a time. The data is
 * the file's content and lives only during the call. May be set before fr_start. NULL removes it,
 * after what is queued was delivered (5 s at most). Cold. */
typedef void (*fr_writer)(const char* path, const void* data, size_t bytes, uint64_t incident,
                          const char* reason, void* user);
FR_API void fr_register_writer(fr_writer writer, void* user) FR_NOEXCEPT;

/* Replaces the file writer altogether: called on the watchdog thread instead of writing a file;
 * returns 0 on success. NULL restores it. Cold. */
typedef int (*fr_sink)(const char* name, const void* data, size_t bytes, void* user);
FR_API void fr_replace_file_writer(fr_sink sink, void* user) FR_NOEXCEPT;

/* Notes why this process is about to end: kind "exception", "exit", ...; any text. First call
 * wins, so that the cause is kept and not what follows. Kept in the ring and in dumps. Warm. */
FR_API void fr_exit_record(const char* kind, const char* type, const char* message,
                           uint32_t stack) FR_NOEXCEPT;

/* Notes that the main thread asks to end the process, with the call stack of that. The last call
 * counts, and only where no operation follows it and nothing else was noted. Warm. */
FR_API void fr_exit_site(uint32_t stack) FR_NOEXCEPT;

/* Notes that the interpreter runs its exit hooks now. Where they take long, the watchdog records that
 * as the operation "interpreter_exit", in flight until fr_shutdown. Cold. */
FR_API void fr_exit_begins(void) FR_NOEXCEPT;

/* Gives the calling thread an alternate signal stack where it has none, until it ends, so that an
 * overflow of its own stack leaves a crash record. Threads that record have it. Cold. */
FR_API void fr_guard_thread(void) FR_NOEXCEPT;

/* Orderly end: with nothing in flight and nothing failed the ring is removed, otherwise a dump is
 * written. status: the exit status of the process. Runs by itself at exit(); idempotent. Cold. */
FR_API void fr_shutdown(int status) FR_NOEXCEPT;

/* JSON object with what fr.status() returns. Returns the bytes needed (without the NUL) like
 * snprintf; the text is cut to fit. Cold. */
FR_API size_t fr_status(char* json, size_t bytes) FR_NOEXCEPT;

/* States which capture layer is active, e.g. ("torch", "adapter 2.13.0 at BackendSelect"); an empty
 * text removes it. Shown in fr_status and dumps. Cold. */
FR_API void fr_set_layer(const char* name, const char* text) FR_NOEXCEPT;

/* One line on stderr, prefixed [fr host:rank]; level 0 error, 1 warn, 2 info, 3 debug. Cold. */
FR_API void fr_log(int level, const char* text) FR_NOEXCEPT;

/* 1: this rank is in a debugger, or waits for one that is, and 0: no more. Meanwhile the watchdogs of
 * this node's ranks call no wait a hang. Cold. */
FR_API void fr_pause(int on) FR_NOEXCEPT;

/* The mapped ring of this process, readable at any instant (libfr/format/layout.hpp describes it);
 * NULL when not recording. */
FR_API const void* fr_region(size_t* bytes) FR_NOEXCEPT;

/* Value in force of an option of the table, e.g. "FR_STACKS"; "" when unknown. Before fr_start the
 * environment is read afresh at each call. Copies like snprintf. Cold. */
FR_API size_t fr_option(const char* name, char* value, size_t bytes) FR_NOEXCEPT;

FR_API const char* fr_dtype_name(uint8_t code) FR_NOEXCEPT;     /* "" for 0, "?" when unknown */
FR_API const char* fr_reduce_op_name(uint8_t code) FR_NOEXCEPT;
FR_API const char* fr_version(void) FR_NOEXCEPT;

/* Called by the watchdog thread every 100 ms, also before it dumps: must be noexcept, and may not wait,
 * allocate, ask a device or take the GIL. Until the process ends; NULL removes it. Cold. */
FR_API void fr_set_tick(void (*tick)(void)) FR_NOEXCEPT;

/* ------------------------------------------------------------------ device libraries */

/* Makes NCCL load this library as its profiler plugin when it makes its first communicator: sets
 * NCCL_PROFILER_PLUGIN in the environment of this process and its children. A plugin of the user's, named
 * there or in NCCL's configuration file, is called through (FR_NCCL_CHAIN keeps its name); "none" stays.
 * Uses setenv(): call it before other threads read the environment. Cold. */
FR_API void fr_nccl_announce(void) FR_NOEXCEPT;
/* Puts the variables back. Cold. */
FR_API void fr_nccl_withdraw(void) FR_NOEXCEPT;
/* Redirects the calls of NCCL in every object that is loaded by now to wrappers that record them; call
 * it again when more were loaded. Returns the number of places that lead to us. Cold. */
FR_API uint32_t fr_nccl_hook(void) FR_NOEXCEPT;
/* Puts the originals back. Returns the number of places. Cold. */
FR_API uint32_t fr_nccl_unhook(void) FR_NOEXCEPT;
/* 1 when operations of NCCL on devices will be followed to their end. Hot. */
FR_API int fr_nccl_active(void) FR_NOEXCEPT;
/* 1: the calling thread stands between ncclGroupStart and ncclGroupEnd, so that what it asks of NCCL is
 * not enqueued yet; 0: it does not; -1: its calls are not seen. Hot. */
FR_API int fr_nccl_grouped(void) FR_NOEXCEPT;
/* 1: some thread of this process captures a graph of a device; 0: none does; -1: its calls of CUDA are not
 * seen. Hot. */
FR_API int fr_capturing(void) FR_NOEXCEPT;
/* Path of this library; "" when unknown. Cold. */
FR_API const char* fr_library_path(void) FR_NOEXCEPT;

/* A framework's operation that a device library carries out: what the calling thread asks of that
 * library between the two belongs to this ticket. fr_leave returns 1 when its start and end will be
 * reported from there: then do not call fr_started or fr_end. Pairs, on one thread. Hot. */
FR_API void fr_enter(const fr_ticket* t) FR_NOEXCEPT;
FR_API int fr_leave(void) FR_NOEXCEPT;

/* ------------------------------------------------------------------ jobs of several nodes */

/* A store of keys and values that all ranks of the job reach, e.g. PyTorch's. One thread of libfr calls
 * these, which may block for as long as they like; each returns less than 0 when the store failed. */
typedef struct fr_store {
  uint32_t struct_bytes;
  const char* host; /* of the store: the address that leads there is the one other nodes reach us by */
  int port;
  void* self; /* goes to each call */
  int (*add)(void* self, const char* key, int64_t amount, int64_t* sum);
  int (*set)(void* self, const char* key, const void* data, size_t bytes);
  /* Sets the key where there is none; copies at most `room` of what it has then. */
  int64_t (*keep)(void* self, const char* key, const void* data, size_t bytes, void* value, size_t room);
  /* Copies at most `room` bytes of the value; returns its length, 0 where there is none. Does not wait. */
  int64_t (*get)(void* self, const char* key, void* value, size_t room);
  void (*close)(void* self); /* no call comes after it */
} fr_store;

/* Has the nodes of the job exchange addresses through the store, so that an incident of one reaches all
 * (FR_TRIGGER). Copies what it is given and returns at once; each rank calls it, after the start, once its
 * rank and world size are known. Does nothing in a job of one node. store->close is called in any case. */
FR_API void fr_join_nodes(const fr_store* store) FR_NOEXCEPT;

/* ------------------------------------------------------------------ for code bound at run time */

/* The calls above as a table, for adapters that are compiled elsewhere and must not link libfr. Members
 * are only added at the end; check struct_bytes before using one. */
typedef struct fr_api {
  uint32_t struct_bytes;
  uint32_t abi_version;
  int (*start)(void);
  int (*enabled)(void);
  uint32_t (*generation)(void);
  fr_group_t (*group)(const fr_group_info*);
  fr_group_t (*group_find)(const char*);
  void (*group_destroyed)(fr_group_t);
  uint32_t (*intern)(const char*, size_t);
  void (*begin)(const fr_op*, fr_ticket*);
  void (*started)(const fr_ticket*);
  void (*end)(const fr_ticket*, int, const char*);
  void (*wait_begin)(const fr_ticket*);
  void (*wait_end)(const fr_ticket*);
  void (*set_layer)(const char*, const char*);
  void (*log)(int, const char*);
  void (*enter)(const fr_ticket*);
  int (*leave)(void);
  int (*nccl_active)(void);
  size_t (*peek)(uint64_t address, void* to, size_t bytes);
  void (*join_nodes)(const fr_store*);
  size_t (*option)(const char* name, char* value, size_t bytes);
  uint32_t (*stack_here)(void);
  int (*nccl_grouped)(void);
  void (*set_tick)(void (*tick)(void));
  int (*capturing)(void);
} fr_api;
FR_API const fr_api* fr_get_api(void) FR_NOEXCEPT;

#ifdef __cplusplus
}
#endif
#endif /* FR_FR_H_ */
