/* Observations whose state is columns of one schema, wmrt.core.wire.Observed. */
#include "codec.h"

enum { FIXED = 41, ITEMS = 7 };
enum { ROBOT, SESSION, EPOCH, SEQUENCE, STATE, CAPTURED, SENT }; /* where things are in the tuple */

/* Columns(type, fields, flags, texts, write, read): a named tuple; (name, kind, size, values,
 * positions) of each field; see struct layout; what Python writes and reads with. */
struct own {
  PyObject_HEAD
  struct layout layout;
  PyObject *type, *fields, *flags, *texts, *write, *read;
};

static enum result write_fixed(unsigned char *out, PyObject *head, Py_ssize_t name) {
  uint64_t session, epoch, sequence;
  int64_t captured, sent;
  enum result done = codec_u64(PyTuple_GetItem(head, SESSION), UINT64_MAX, &session);
  done = done == DONE ? codec_u64(PyTuple_GetItem(head, EPOCH), UINT32_MAX, &epoch) : done;
  done = done == DONE ? codec_u64(PyTuple_GetItem(head, SEQUENCE), UINT64_MAX, &sequence) : done;
  done = done == DONE ? codec_time(PyTuple_GetItem(head, CAPTURED), &captured) : done;
  done = done == DONE ? codec_time(PyTuple_GetItem(head, SENT), &sent) : done;
  if (done == DONE) {
    memcpy(out, "WM", 2);
    out[2] = VERSION;
    out[3] = FLOATS;
    store(out + 4, session, 8);
    store(out + 12, epoch, 4);
    store(out + 16, sequence, 8);
    store(out + 24, (uint64_t)captured, 8);
    store(out + 32, (uint64_t)sent, 8);
    out[40] = (unsigned char)name;
  }
  return done;
}

static enum result written(const struct own *self, PyObject *head, PyObject **made) {
  const char *name;
  Py_ssize_t size;
  if (!PyTuple_Check(head) || PyTuple_Size(head) != ITEMS) {
    return DECLINED;
  }
  enum result done = codec_utf8(PyTuple_GetItem(head, ROBOT), NAME_BYTES, &name, &size);
  if (done != DONE) {
    return done;
  }
  *made = PyBytes_FromStringAndSize(NULL, FIXED + size + self->layout.bytes);
  if (*made == NULL) {
    return FAILED;
  }
  unsigned char *out = (unsigned char *)PyBytes_AsString(*made);
  done = write_fixed(out, head, size);
  if (done == DONE) {
    memcpy(out + FIXED, name, (size_t)size);
    done = codec_pack_state(&self->layout, PyTuple_GetItem(head, STATE), out + FIXED + size);
  }
  if (done != DONE) {
    Py_CLEAR(*made);
  }
  return done;
}

/* write(head): the message of an observation. */
static PyObject *columns_write(PyObject *own, PyObject *head) {
  PyObject *made = NULL;
  if (written((struct own *)own, head, &made) == DECLINED) {
    return PyObject_CallFunctionObjArgs(((struct own *)own)->write, head, NULL);
  }
  return made;
}

/* The observation that is a message, if it is one with a state of this schema. */
static enum result read_message(struct own *self, const unsigned char *data, Py_ssize_t size,
                                PyObject **made) {
  if (size < FIXED || memcmp(data, "WM", 2) != 0 || data[2] != VERSION || data[3] != FLOATS ||
      size != FIXED + data[40] + self->layout.bytes) {
    return DECLINED;
  }
  PyObject *robot = codec_text(data + FIXED, data[40]);
  if (robot == NULL) {
    return codec_declined();
  }
  PyObject *state = codec_unpack_state(&self->layout, data + FIXED + data[40]);
  if (state == NULL || state == Py_None) {
    Py_DECREF(robot);
    Py_XDECREF(state);
    return state == NULL ? FAILED : DECLINED;
  }
  PyObject *items[ITEMS] = {
    robot,
    PyLong_FromUnsignedLongLong(load(data + 4, 8)),
    PyLong_FromUnsignedLongLong(load(data + 12, 4)),
    PyLong_FromUnsignedLongLong(load(data + 16, 8)),
    state,
    codec_stamp((int64_t)load(data + 24, 8)),
    codec_stamp((int64_t)load(data + 32, 8)),
  };
  *made = codec_make(self->type, items, ITEMS);
  return *made == NULL ? FAILED : DONE;
}

/* read(data): the observation that is a message. */
static PyObject *columns_read(PyObject *own, PyObject *data) {
  struct own *self = (struct own *)own;
  if (PyBytes_CheckExact(data)) {
    PyObject *made = NULL;
    const unsigned char *bytes = (const unsigned char *)PyBytes_AsString(data);
    if (read_message(self, bytes, PyBytes_Size(data), &made) != DECLINED) {
      return made;
    }
  }
  return PyObject_CallFunctionObjArgs(self->read, data, NULL);
}

/* The observation in a client's frame, whose bytes stay masked where they are. */
static enum result read_frame(struct own *self, const unsigned char *data,
                              const struct frame *found, PyObject **made) {
  Py_ssize_t size = found->end - found->begin;
  unsigned char few[1024], *message = few; /* most states are small */
  if (size > (Py_ssize_t)sizeof few) {
    message = PyMem_Malloc((size_t)size);
    if (message == NULL) {
      PyErr_NoMemory();
      return FAILED;
    }
  }
  codec_mask(message, data + found->begin, size, data + found->begin - KEY_BYTES);
  enum result done = read_message(self, message, size, made);
  if (message != few) {
    PyMem_Free(message);
  }
  return done;
}

/* take(data, at, most): the observation in the client's frame at `at`, of at most so many bytes,
 * and where that ends. None for anything else. */
static PyObject *columns_take(PyObject *own, PyObject *const *given, Py_ssize_t count) {
  if (count != 3 || !PyBytes_Check(given[0])) {
    PyErr_SetString(PyExc_TypeError, "take(data: bytes, at: int, most: int)");
    return NULL;
  }
  Py_ssize_t at = PyLong_AsSsize_t(given[1]), most = PyLong_AsSsize_t(given[2]);
  if (PyErr_Occurred()) {
    return NULL;
  }
  const unsigned char *data = (const unsigned char *)PyBytes_AsString(given[0]);
  PyObject *made = NULL;
  struct frame found;
  enum result done = DECLINED;
  if (codec_find(data, PyBytes_Size(given[0]), at, &found) && found.masked &&
      found.end - found.begin <= most) {
    done = read_frame((struct own *)own, data, &found, &made);
  }
  if (done == DECLINED) {
    return Py_NewRef(Py_None);
  }
  return done == DONE ? Py_BuildValue("Nn", made, found.end) : NULL;
}

/* One field, after `before` columns. */
static bool read_field(PyObject *entry, Py_ssize_t before, struct field *to) {
  if (!PyTuple_Check(entry)) {
    PyErr_SetString(PyExc_TypeError, "fields: tuples");
    return false;
  }
  if (!PyArg_ParseTuple(entry, "UlnO!O!", &to->name, &to->kind, &to->size, &PyTuple_Type,
                        &to->values, &PyDict_Type, &to->positions)) {
    return false;
  }
  if (to->kind < 0 || to->kind >= KINDS || to->size < 0 || (to->kind != VECTOR && to->size != 1)) {
    PyErr_SetString(PyExc_ValueError, "fields: kind 0 to 3, size 1 but of a vector");
    return false;
  }
  if (to->size > UINT16_MAX - before) {
    PyErr_SetString(PyExc_ValueError, "fields: more than 65535 columns");
    return false;
  }
  return true;
}

static bool read_layout(PyObject *fields, struct layout *to) {
  to->count = PyTuple_Size(fields);
  to->fields = PyMem_Calloc((size_t)to->count, sizeof *to->fields);
  if (to->fields == NULL) {
    PyErr_NoMemory();
    return false;
  }
  for (Py_ssize_t i = 0; i < to->count; i++) {
    if (!read_field(PyTuple_GetItem(fields, i), to->size, &to->fields[i])) {
      return false;
    }
    to->size += to->fields[i].size;
  }
  to->map = (to->size + 7) / 8;
  to->bytes = 2 + to->map + 4 * to->size;
  return true;
}

static PyObject *columns_new(PyTypeObject *type, PyObject *arguments, PyObject *named) {
  static char *names[] = {"type", "fields", "flags", "texts", "write", "read", NULL};
  PyObject *kind, *fields, *flags, *texts, *write, *read;
  if (!PyArg_ParseTupleAndKeywords(arguments, named, "OO!O!O!OO", names, &kind, &PyTuple_Type,
                                   &fields, &PyDict_Type, &flags, &PyTuple_Type, &texts, &write,
                                   &read)) {
    return NULL;
  }
  if (!PyType_Check(kind) || !PyType_IsSubtype((PyTypeObject *)kind, &PyTuple_Type)) {
    PyErr_SetString(PyExc_TypeError, "type: a named tuple's");
    return NULL;
  }
  struct own *self = (struct own *)PyType_GenericAlloc(type, 0);
  if (self == NULL) {
    return NULL;
  }
  self->type = Py_NewRef(kind);
  self->fields = Py_NewRef(fields);
  self->layout.flags = self->flags = Py_NewRef(flags);
  self->layout.texts = self->texts = Py_NewRef(texts);
  self->write = Py_NewRef(write);
  self->read = Py_NewRef(read);
  if (!read_layout(fields, &self->layout)) {
    Py_DECREF(self);
    return NULL;
  }
  return (PyObject *)self;
}

/* Who reads in Python may hold this in turn: the collector has to see it. */
static int columns_visit(PyObject *own, visitproc visit, void *arg) {
  struct own *self = (struct own *)own;
  Py_VISIT(Py_TYPE(own));
  Py_VISIT(self->type);
  Py_VISIT(self->fields);
  Py_VISIT(self->flags);
  Py_VISIT(self->texts);
  Py_VISIT(self->write);
  Py_VISIT(self->read);
  return 0;
}

static int columns_clear(PyObject *own) {
  Py_CLEAR(((struct own *)own)->write);
  Py_CLEAR(((struct own *)own)->read);
  return 0;
}

static void columns_free(PyObject *own) {
  struct own *self = (struct own *)own;
  PyTypeObject *type = Py_TYPE(own);
  PyObject_GC_UnTrack(own);
  columns_clear(own);
  PyMem_Free(self->layout.fields);
  Py_XDECREF(self->type);
  Py_XDECREF(self->fields);
  Py_XDECREF(self->flags);
  Py_XDECREF(self->texts);
  PyObject_GC_Del(own);
  Py_DECREF(type);
}

static PyMethodDef methods[] = {
  {"write", columns_write, METH_O, NULL},
  {"read", columns_read, METH_O, NULL},
  {"take", (PyCFunction)(void (*)(void))columns_take, METH_FASTCALL, NULL},
  {NULL, NULL, 0, NULL},
};

static PyType_Slot slots[] = {
  {Py_tp_new, (void *)columns_new},
  {Py_tp_dealloc, (void *)columns_free},
  {Py_tp_traverse, (void *)columns_visit},
  {Py_tp_clear, (void *)columns_clear},
  {Py_tp_methods, methods},
  {0, NULL},
};

PyType_Spec codec_columns_spec = {
  "wmrt.core._codec.Columns", sizeof(struct own), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
  slots,
};
