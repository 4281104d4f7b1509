/* Messages of the control step and their frames, between bytes and Python's objects.
 *
 * wmrt/core/wire.py, wire_state.py and wmrt/client/frames.py say what they are. What is not the
 * plain case (a message that is none, a value of an unusual type) is handed to the function of
 * theirs that this code was given, so that every error has one wording. Only Python's stable
 * interface of 3.10 is used: one build serves every CPython. */
#ifndef WMRT_CODEC_H
#define WMRT_CODEC_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

enum { VERSION = 1, FLOATS = 1, ACTION = 3 };
enum { WHOLE_BINARY = 0x82, MASKED = 0x80 };
enum { HEAD_BYTES = 10, KEY_BYTES = 4 }; /* at most before a payload; a mask's key, not of these */
enum { NAME_BYTES = 64 };
#define NONE INT64_MIN /* a time that is not known */

/* What became of an attempt: an exception is set, it is for Python to do, it is done. */
enum result { FAILED = -1, DECLINED = 0, DONE = 1 };

/* A frame of a WebSocket that is a whole binary message, and whole. */
struct frame {
  Py_ssize_t begin, end; /* of its payload */
  bool masked;           /* with the KEY_BYTES before it */
};

/* common.c */
enum result codec_declined(void);
PyObject *codec_make(PyObject *type, PyObject **items, Py_ssize_t count);
PyObject *codec_text(const unsigned char *data, Py_ssize_t size);
PyObject *codec_stamp(int64_t value);
enum result codec_u64(PyObject *value, uint64_t most, uint64_t *out);
enum result codec_i64(PyObject *value, int64_t *out);
enum result codec_time(PyObject *value, int64_t *out);
enum result codec_utf8(PyObject *value, Py_ssize_t most, const char **data, Py_ssize_t *size);

/* frames.c */
bool codec_find(const unsigned char *data, Py_ssize_t size, Py_ssize_t at, struct frame *found);
Py_ssize_t codec_head(unsigned char *out, Py_ssize_t size, unsigned mask);
void codec_mask(unsigned char *out, const unsigned char *data, Py_ssize_t size,
                const unsigned char *key);
PyObject *codec_masked(PyObject *module, PyObject *data);
PyObject *codec_payload(PyObject *module, PyObject *data);

/* state.c: a state as columns. */
enum kind { NUMERIC, VECTOR, CATEGORY, FLAG, KINDS };
struct field {
  PyObject *name, *values, *positions; /* of a category: its values, and {value: position} */
  Py_ssize_t size;
  long kind;
};
struct layout {
  struct field *fields;
  PyObject *flags; /* {value: 0.0 or 1.0} */
  PyObject *texts; /* types of what is no number, though float() might read it */
  Py_ssize_t count, size, map, bytes;
};
enum result codec_pack_state(const struct layout *layout, PyObject *state, unsigned char *out);
PyObject *codec_unpack_state(const struct layout *layout, const unsigned char *body);

/* value.c: one value of a state. */
enum result codec_column(const struct layout *layout, const struct field *field, PyObject *value,
                         double *out, bool *given);

/* columns.c, answers.c: the types of the module. */
extern PyType_Spec codec_columns_spec, codec_answers_spec;
enum result codec_read_answer(PyObject *own, const unsigned char *data, Py_ssize_t size,
                              PyObject **made);

/* receive.c: of the answers' type. */
PyObject *codec_receive(PyObject *own, PyObject *const *given, Py_ssize_t count);

static inline uint64_t load(const unsigned char *data, int bytes) {
  uint64_t value = 0;
  for (int i = 0; i < bytes; i++) {
    value |= (uint64_t)data[i] << (8 * i);
  }
  return value;
}

static inline void store(unsigned char *out, uint64_t value, int bytes) {
  for (int i = 0; i < bytes; i++) {
    out[i] = (unsigned char)(value >> (8 * i));
  }
}

static inline double load_float(const unsigned char *data) {
  uint32_t bits = (uint32_t)load(data, 4);
  float value;
  memcpy(&value, &bits, sizeof value);
  return value;
}

static inline void store_float(unsigned char *out, float value) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof bits);
  store(out, bits, 4);
}

#endif
