/* A state as float32 columns, and back; see StateLayout. */
#include "codec.h"

#include <math.h>

enum { COUNT_BYTES = 2 };

/* Where the columns go, and the next one. */
struct columns {
  const struct layout *layout;
  unsigned char *map, *floats;
  Py_ssize_t at;
};

static enum result put(struct columns *to, const struct field *field, PyObject *value) {
  double column;
  bool given;
  enum result done = codec_column(to->layout, field, value, &column, &given);
  if (done != DONE) {
    return done;
  }
  store_float(to->floats + 4 * to->at, (float)column); /* beyond float32: an infinity */
  if (given) {
    to->map[to->at / 8] |= (unsigned char)(1u << (to->at % 8));
  }
  to->at += 1;
  return DONE;
}

/* A component of a list or tuple, borrowed. */
static PyObject *component(PyObject *parts, Py_ssize_t i) {
  return PyList_CheckExact(parts) ? PyList_GetItem(parts, i) : PyTuple_GetItem(parts, i);
}

static enum result put_vector(struct columns *to, const struct field *field, PyObject *value) {
  bool list = PyList_CheckExact(value), unknown = value == Py_None;
  if (!unknown && !list && !PyTuple_CheckExact(value)) {
    return DECLINED; /* what can be read once only must be whole for Python */
  }
  for (Py_ssize_t i = 0; i < field->size; i++) {
    PyObject *part = unknown ? Py_None : component(value, i);
    if (part == NULL) { /* too few, or code of a component has taken some */
      return codec_declined();
    }
    Py_INCREF(part);
    enum result done = put(to, field, part);
    Py_DECREF(part);
    if (done != DONE) {
      return done;
    }
  }
  Py_ssize_t size = unknown ? field->size : list ? PyList_Size(value) : PyTuple_Size(value);
  return size == field->size ? DONE : DECLINED;
}

/* Write a state's columns to `out`, which has layout->bytes. */
enum result codec_pack_state(const struct layout *layout, PyObject *state, unsigned char *out) {
  if (!PyDict_CheckExact(state)) {
    return DECLINED;
  }
  memset(out, 0, (size_t)layout->bytes);
  store(out, (uint64_t)layout->size, COUNT_BYTES);
  struct columns to = {layout, out + COUNT_BYTES, out + COUNT_BYTES + layout->map, 0};
  Py_ssize_t declared = 0;
  for (Py_ssize_t i = 0; i < layout->count; i++) {
    const struct field *field = &layout->fields[i];
    PyObject *value = PyDict_GetItemWithError(state, field->name);
    if (value == NULL && PyErr_Occurred()) {
      return codec_declined();
    }
    declared += value != NULL;
    value = value == NULL ? Py_None : value;
    Py_INCREF(value);
    enum result done = (field->kind == VECTOR ? put_vector : put)(&to, field, value);
    Py_DECREF(value);
    if (done != DONE) {
      return done;
    }
  }
  return declared == PyDict_Size(state) ? DONE : DECLINED; /* no others */
}

/* A category's value, or a flag; the number itself where it names neither. */
static PyObject *named(const struct field *field, double column) {
  if (field->kind == FLAG && (column == 0.0 || column == 1.0)) {
    return PyBool_FromLong(column == 1.0);
  }
  if (field->kind == CATEGORY && column >= 0.0 && floor(column) == column) {
    Py_ssize_t count = PyTuple_Size(field->values);
    if (column < (double)count) {
      PyObject *value = PyTuple_GetItem(field->values, (Py_ssize_t)column);
      Py_XINCREF(value);
      return value;
    }
  }
  return PyFloat_FromDouble(column);
}

/* Column number `at` of a body that has been checked. */
static PyObject *column(const struct layout *layout, const struct field *field,
                        const unsigned char *body, Py_ssize_t at) {
  const unsigned char *map = body + COUNT_BYTES;
  if (!(map[at / 8] >> (at % 8) & 1)) {
    return Py_NewRef(Py_None);
  }
  double value = load_float(map + layout->map + 4 * at);
  bool plain = field->kind == NUMERIC || field->kind == VECTOR;
  return plain ? PyFloat_FromDouble(value) : named(field, value);
}

static PyObject *vector(const struct layout *layout, const struct field *field,
                        const unsigned char *body, Py_ssize_t at) {
  PyObject *list = PyList_New(field->size);
  for (Py_ssize_t i = 0; list != NULL && i < field->size; i++) {
    PyObject *part = column(layout, field, body, at + i);
    if (part == NULL || PyList_SetItem(list, i, part) < 0) {
      Py_CLEAR(list);
    }
  }
  return list;
}

/* The state of a body of layout->bytes; None if it is another schema's; NULL with an exception. */
PyObject *codec_unpack_state(const struct layout *layout, const unsigned char *body) {
  if (load(body, COUNT_BYTES) != (uint64_t)layout->size) {
    return Py_NewRef(Py_None);
  }
  PyObject *state = PyDict_New();
  Py_ssize_t at = 0;
  for (Py_ssize_t i = 0; state != NULL && i < layout->count; i++) {
    const struct field *field = &layout->fields[i];
    PyObject *value = field->kind == VECTOR ? vector(layout, field, body, at)
                                            : column(layout, field, body, at);
    if (value == NULL || PyDict_SetItem(state, field->name, value) < 0) {
      Py_CLEAR(state);
    }
    Py_XDECREF(value);
    at += field->size;
  }
  return state;
}
