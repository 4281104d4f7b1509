/* Answers: what a service says to a robot's observation, wmrt.core.wire.Acted. */
#include "codec.h"

#include <math.h>

enum { FIXED = 75, ITEMS = 15, LEVELS = 8 };
/* Where things are in the tuple. */
enum { ROBOT, SESSION, EPOCH, SEQUENCE, STEP, ACTION_VALUES, SOURCE, BREAKERS, TRIPPED, LATE };
enum { SKIPPED = 10, CAPTURED, QUEUE, POLICY, ACT };

/* Answers(type, levels, pack, unpack): a named tuple, the levels of every byte, and what
 * Python packs and unpacks with. */
struct answers {
  PyObject_HEAD
  PyObject *type, *levels, *pack, *unpack;
};

/* An answer's parts, on their way to bytes. */
struct parts {
  uint64_t session, epoch, sequence, step, skipped, late, levels;
  int64_t captured, queue, policy, act;
  const char *texts[3];
  Py_ssize_t sizes[3], actuators;
};

static enum result read_levels(PyObject *tripped, uint64_t *bits) {
  if (!PyTuple_CheckExact(tripped)) {
    return DECLINED;
  }
  *bits = 0;
  for (Py_ssize_t i = 0; i < PyTuple_Size(tripped); i++) {
    uint64_t level;
    enum result done = codec_u64(PyTuple_GetItem(tripped, i), LEVELS - 1, &level);
    if (done != DONE) {
      return done;
    }
    *bits |= UINT64_C(1) << level;
  }
  return DONE;
}

static enum result read_action(PyObject *action, Py_ssize_t *count) {
  if (!PyTuple_CheckExact(action) || PyTuple_Size(action) > UINT16_MAX) {
    return DECLINED;
  }
  *count = PyTuple_Size(action);
  for (Py_ssize_t i = 0; i < *count; i++) {
    if (!PyFloat_CheckExact(PyTuple_GetItem(action, i))) {
      return DECLINED;
    }
  }
  return DONE;
}

static enum result read_numbers(PyObject **item, struct parts *to) {
  enum result done = codec_u64(item[SESSION], UINT64_MAX, &to->session);
  done = done == DONE ? codec_u64(item[EPOCH], UINT32_MAX, &to->epoch) : done;
  done = done == DONE ? codec_u64(item[SEQUENCE], UINT64_MAX, &to->sequence) : done;
  done = done == DONE ? codec_u64(item[STEP], UINT64_MAX, &to->step) : done;
  done = done == DONE ? codec_u64(item[SKIPPED], UINT32_MAX, &to->skipped) : done;
  done = done == DONE ? codec_time(item[CAPTURED], &to->captured) : done;
  done = done == DONE ? codec_i64(item[QUEUE], &to->queue) : done;
  done = done == DONE ? codec_time(item[POLICY], &to->policy) : done;
  return done == DONE ? codec_i64(item[ACT], &to->act) : done;
}

static enum result read_parts(PyObject *answer, PyObject **item, struct parts *to) {
  static const int texts[] = {ROBOT, SOURCE, BREAKERS};
  if (!PyTuple_Check(answer) || PyTuple_Size(answer) != ITEMS) {
    return DECLINED;
  }
  for (int i = 0; i < ITEMS; i++) {
    item[i] = PyTuple_GetItem(answer, i);
  }
  enum result done = read_numbers(item, to);
  for (int i = 0; i < 3 && done == DONE; i++) {
    done = codec_utf8(item[texts[i]], UINT8_MAX, &to->texts[i], &to->sizes[i]);
  }
  done = done == DONE ? read_levels(item[TRIPPED], &to->levels) : done;
  done = done == DONE ? read_action(item[ACTION_VALUES], &to->actuators) : done;
  if (done == DONE && !PyBool_Check(item[LATE])) {
    done = DECLINED;
  }
  to->late = item[LATE] == Py_True;
  return done;
}

static void write_fixed(unsigned char *out, const struct parts *from) {
  memcpy(out, "WM", 2);
  out[2] = VERSION;
  out[3] = ACTION;
  store(out + 4, from->session, 8);
  store(out + 12, from->epoch, 4);
  store(out + 16, from->sequence, 8);
  store(out + 24, from->step, 8);
  store(out + 32, (uint64_t)from->captured, 8);
  store(out + 40, (uint64_t)from->queue, 8);
  store(out + 48, (uint64_t)from->policy, 8);
  store(out + 56, (uint64_t)from->act, 8);
  store(out + 64, from->skipped, 4);
  out[68] = (unsigned char)from->late;
  out[69] = (unsigned char)from->levels;
  for (int i = 0; i < 3; i++) {
    out[70 + i] = (unsigned char)from->sizes[i];
  }
  store(out + 73, (uint64_t)from->actuators, 2);
}

/* Floats that were found to be some; one that float32 cannot hold is Python's. */
static enum result write_action(unsigned char *out, PyObject *action) {
  for (Py_ssize_t i = 0; i < PyTuple_Size(action); i++) {
    double value = PyFloat_AsDouble(PyTuple_GetItem(action, i));
    float single = (float)value;
    if (isinf(single) && !isinf(value)) {
      return DECLINED;
    }
    store_float(out + 4 * i, single);
  }
  return DONE;
}

/* An answer as bytes, or as a frame of them. */
static enum result packed(PyObject *answer, bool framed, PyObject **made) {
  PyObject *item[ITEMS];
  struct parts parts;
  enum result done = read_parts(answer, item, &parts);
  if (done != DONE) {
    return done;
  }
  unsigned char head[HEAD_BYTES];
  Py_ssize_t size = FIXED + parts.sizes[0] + parts.sizes[1] + parts.sizes[2] + 4 * parts.actuators;
  Py_ssize_t begin = framed ? codec_head(head, size, 0) : 0;
  *made = PyBytes_FromStringAndSize(NULL, begin + size);
  if (*made == NULL) {
    return FAILED;
  }
  unsigned char *out = (unsigned char *)PyBytes_AsString(*made);
  memcpy(out, head, (size_t)begin);
  write_fixed(out + begin, &parts);
  out += begin + FIXED;
  for (int i = 0; i < 3; i++) {
    memcpy(out, parts.texts[i], (size_t)parts.sizes[i]);
    out += parts.sizes[i];
  }
  done = write_action(out, item[ACTION_VALUES]);
  if (done != DONE) {
    Py_CLEAR(*made);
  }
  return done;
}

/* pack(answer): bytes of a message. */
static PyObject *answers_pack(PyObject *own, PyObject *answer) {
  struct answers *self = (struct answers *)own;
  PyObject *made = NULL;
  if (packed(answer, false, &made) == DECLINED) {
    return PyObject_CallFunctionObjArgs(self->pack, answer, NULL);
  }
  return made;
}

/* frame(answer): the same as a frame of a server's. */
static PyObject *answers_frame(PyObject *own, PyObject *answer) {
  struct answers *self = (struct answers *)own;
  PyObject *made = NULL;
  if (packed(answer, true, &made) != DECLINED) {
    return made;
  }
  PyObject *message = PyObject_CallFunctionObjArgs(self->pack, answer, NULL);
  if (message != NULL) {
    unsigned char head[HEAD_BYTES];
    Py_ssize_t size = PyBytes_Size(message);
    PyObject *first = size < 0 ? NULL
      : PyBytes_FromStringAndSize((char *)head, codec_head(head, size, 0));
    made = first == NULL ? NULL : PySequence_Concat(first, message);
    Py_XDECREF(first);
    Py_DECREF(message);
  }
  return made;
}

static PyObject *read_values(const unsigned char *data, Py_ssize_t count) {
  PyObject *action = PyTuple_New(count);
  for (Py_ssize_t i = 0; action != NULL && i < count; i++) {
    PyObject *value = PyFloat_FromDouble(load_float(data + 4 * i));
    if (value == NULL || PyTuple_SetItem(action, i, value) < 0) {
      Py_CLEAR(action);
    }
  }
  return action;
}

/* An answer of bytes whose sizes have been found to fit. */
static PyObject *unpacked(struct answers *self, const unsigned char *data) {
  const unsigned char *source = data + FIXED + data[70], *state = source + data[71];
  PyObject *levels = PyTuple_GetItem(self->levels, data[69]);
  Py_XINCREF(levels);
  PyObject *items[ITEMS] = {
    codec_text(data + FIXED, data[70]),
    PyLong_FromUnsignedLongLong(load(data + 4, 8)),
    PyLong_FromUnsignedLongLong(load(data + 12, 4)),
    PyLong_FromUnsignedLongLong(load(data + 16, 8)),
    PyLong_FromUnsignedLongLong(load(data + 24, 8)),
    read_values(state + data[72], (Py_ssize_t)load(data + 73, 2)),
    codec_text(source, data[71]),
    codec_text(state, data[72]),
    levels,
    PyBool_FromLong(data[68] != 0),
    PyLong_FromUnsignedLongLong(load(data + 64, 4)),
    codec_stamp((int64_t)load(data + 32, 8)),
    PyLong_FromLongLong((int64_t)load(data + 40, 8)),
    codec_stamp((int64_t)load(data + 48, 8)),
    PyLong_FromLongLong((int64_t)load(data + 56, 8)),
  };
  return codec_make(self->type, items, ITEMS);
}

/* The answer that is a message, if it is one. */
enum result codec_read_answer(PyObject *own, const unsigned char *data, Py_ssize_t size,
                              PyObject **made) {
  if (size < FIXED || memcmp(data, "WM", 2) != 0 || data[2] != VERSION || data[3] != ACTION) {
    return DECLINED;
  }
  Py_ssize_t texts = data[70] + data[71] + data[72];
  if (size != FIXED + texts + 4 * (Py_ssize_t)load(data + 73, 2)) {
    return DECLINED;
  }
  *made = unpacked((struct answers *)own, data);
  return *made == NULL ? codec_declined() : DONE;
}

/* unpack(data): the answer that is a message of bytes. */
static PyObject *answers_unpack(PyObject *own, PyObject *data) {
  struct answers *self = (struct answers *)own;
  if (PyBytes_CheckExact(data)) {
    PyObject *made = NULL;
    const unsigned char *bytes = (const unsigned char *)PyBytes_AsString(data);
    if (codec_read_answer(own, bytes, PyBytes_Size(data), &made) != DECLINED) {
      return made;
    }
  }
  return PyObject_CallFunctionObjArgs(self->unpack, data, NULL);
}

static PyObject *answers_new(PyTypeObject *type, PyObject *arguments, PyObject *named) {
  static char *names[] = {"type", "levels", "pack", "unpack", NULL};
  PyObject *kind, *levels, *pack, *unpack;
  if (!PyArg_ParseTupleAndKeywords(arguments, named, "OO!OO", names, &kind, &PyTuple_Type, &levels,
                                   &pack, &unpack)) {
    return NULL;
  }
  if (!PyType_Check(kind) || !PyType_IsSubtype((PyTypeObject *)kind, &PyTuple_Type)) {
    PyErr_SetString(PyExc_TypeError, "type: a named tuple's");
    return NULL;
  }
  struct answers *self = (struct answers *)PyType_GenericAlloc(type, 0);
  if (self != NULL) {
    self->type = Py_NewRef(kind);
    self->levels = Py_NewRef(levels);
    self->pack = Py_NewRef(pack);
    self->unpack = Py_NewRef(unpack);
  }
  return (PyObject *)self;
}

static void answers_free(PyObject *own) {
  struct answers *self = (struct answers *)own;
  PyTypeObject *type = Py_TYPE(own);
  Py_XDECREF(self->type);
  Py_XDECREF(self->levels);
  Py_XDECREF(self->pack);
  Py_XDECREF(self->unpack);
  PyObject_Free(own);
  Py_DECREF(type);
}

static PyMethodDef methods[] = {
  {"pack", answers_pack, METH_O, NULL},
  {"frame", answers_frame, METH_O, NULL},
  {"unpack", answers_unpack, METH_O, NULL},
  {"receive", (PyCFunction)(void (*)(void))codec_receive, METH_FASTCALL, NULL},
  {NULL, NULL, 0, NULL},
};

static PyType_Slot slots[] = {
  {Py_tp_new, (void *)answers_new},
  {Py_tp_dealloc, (void *)answers_free},
  {Py_tp_methods, methods},
  {0, NULL},
};

PyType_Spec codec_answers_spec = {
  "wmrt.core._codec.Answers", sizeof(struct answers), 0, Py_TPFLAGS_DEFAULT, slots,
};
