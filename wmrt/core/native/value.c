/* One value of a state as a column, as StateLayout._parts has it. */
#include "codec.h"

#include <math.h>

/* Whether a text says that a value is not known. */
static bool unknown(PyObject *text) {
  return PyUnicode_GetLength(text) == 0 || PyUnicode_CompareWithASCIIString(text, "unknown") == 0;
}

/* A number of another type, such as numpy's. float() may run any code. */
static enum result other_number(const struct layout *layout, PyObject *value, double *out) {
  int text = PyObject_IsInstance(value, layout->texts);
  if (text != 0) {
    return text < 0 ? codec_declined() : DECLINED;
  }
  PyObject *number = PyNumber_Float(value);
  if (number == NULL) {
    return codec_declined();
  }
  *out = PyFloat_AsDouble(number);
  Py_DECREF(number);
  return DONE;
}

static enum result number(const struct layout *layout, PyObject *value, double *out) {
  if (PyFloat_CheckExact(value)) {
    *out = PyFloat_AsDouble(value);
    return DONE;
  }
  if (PyBool_Check(value) || PyUnicode_CheckExact(value)) {
    *out = NAN;
    return DONE;
  }
  if (!PyLong_CheckExact(value)) {
    return other_number(layout, value, out);
  }
  *out = PyLong_AsDouble(value);
  return *out == -1.0 && PyErr_Occurred() ? codec_declined() : DONE;
}

/* What a table has for a value, `otherwise` for one that it does not have. */
static enum result looked_up(PyObject *table, PyObject *value, double otherwise, double *out) {
  PyObject *found = PyDict_GetItemWithError(table, value);
  if (found == NULL && PyErr_Occurred()) { /* not hashable */
    return codec_declined();
  }
  *out = found == NULL ? otherwise : PyFloat_AsDouble(found);
  return DONE;
}

/* A value, or a vector's component, as a column; `given` is false if it is not known. */
enum result codec_column(const struct layout *layout, const struct field *field, PyObject *value,
                         double *out, bool *given) {
  *out = 0.0;
  *given = value != Py_None;
  if (!*given) {
    return DONE;
  }
  if (PyFloat_CheckExact(value) && (field->kind == NUMERIC || field->kind == VECTOR)) {
    *out = PyFloat_AsDouble(value);
    return DONE;
  }
  if (PyUnicode_Check(value)) {
    if (!PyUnicode_CheckExact(value)) {
      return DECLINED; /* it may compare as it likes */
    }
    if (field->kind != VECTOR && unknown(value)) {
      *given = false;
      return DONE;
    }
  }
  if (field->kind == FLAG) {
    return looked_up(layout->flags, value, NAN, out);
  }
  if (field->kind != CATEGORY) {
    return number(layout, value, out);
  }
  if (!PyUnicode_Check(value)) {
    return DECLINED;
  }
  return looked_up(field->positions, value, -1.0, out);
}
