/* What the others share: named tuples, integers, texts. */
#include "codec.h"

/* After a failure: whether it is one that Python's own code finds again, and words. */
enum result codec_declined(void) {
  if (!PyErr_Occurred()) {
    return DECLINED;
  }
  if (!PyErr_ExceptionMatches(PyExc_Exception)) { /* somebody interrupts */
    return FAILED;
  }
  PyErr_Clear();
  return DECLINED;
}

/* A named tuple of items, which become its own; NULL if one of them is, with its exception set. */
PyObject *codec_make(PyObject *type, PyObject **items, Py_ssize_t count) {
  PyObject *plain = PyTuple_New(count), *arguments = NULL, *made = NULL;
  bool whole = plain != NULL;
  for (Py_ssize_t i = 0; i < count; i++) {
    whole = whole && items[i] != NULL;
    if (plain == NULL) {
      Py_XDECREF(items[i]);
    } else if (items[i] != NULL) {
      PyTuple_SetItem(plain, i, items[i]);
    }
  }
  if (whole) {
    arguments = PyTuple_Pack(1, plain);
  }
  if (arguments != NULL) {
    /* The type's own way is a function in Python, which makes a tuple of its arguments again. */
    void *slot = PyType_GetSlot(&PyTuple_Type, Py_tp_new);
    newfunc make;
    memcpy(&make, &slot, sizeof make);
    made = make((PyTypeObject *)type, arguments, NULL);
  }
  Py_XDECREF(arguments);
  Py_XDECREF(plain);
  return made;
}

/* A text; NULL with an exception, also one that stands already: the decoder must not meet that. */
PyObject *codec_text(const unsigned char *data, Py_ssize_t size) {
  if (PyErr_Occurred()) {
    return NULL;
  }
  return PyUnicode_DecodeUTF8((const char *)data, size, NULL);
}

/* A time that may not be known. */
PyObject *codec_stamp(int64_t value) {
  if (value == NONE) {
    return Py_NewRef(Py_None);
  }
  return PyLong_FromLongLong(value);
}

/* An integer of 0 to most; others, and other types, are Python's. */
enum result codec_u64(PyObject *value, uint64_t most, uint64_t *out) {
  if (!PyLong_CheckExact(value)) {
    return DECLINED;
  }
  *out = PyLong_AsUnsignedLongLong(value);
  if (*out == UINT64_MAX && PyErr_Occurred()) {
    return codec_declined();
  }
  return *out <= most ? DONE : DECLINED;
}

enum result codec_i64(PyObject *value, int64_t *out) {
  if (!PyLong_CheckExact(value)) {
    return DECLINED;
  }
  *out = PyLong_AsLongLong(value);
  return *out == -1 && PyErr_Occurred() ? codec_declined() : DONE;
}

enum result codec_time(PyObject *value, int64_t *out) {
  if (value == Py_None) {
    *out = NONE;
    return DONE;
  }
  return codec_i64(value, out);
}

/* A text's bytes, which live as long as the text; longer ones are Python's. */
enum result codec_utf8(PyObject *value, Py_ssize_t most, const char **data, Py_ssize_t *size) {
  if (!PyUnicode_CheckExact(value)) {
    return DECLINED;
  }
  *data = PyUnicode_AsUTF8AndSize(value, size);
  if (*data == NULL) {
    return codec_declined();
  }
  return *size <= most ? DONE : DECLINED;
}
