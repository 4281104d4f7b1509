/* wmrt.core._codec: what wmrt/core/codec.py makes use of. */
#include "codec.h"

static int add(PyObject *module, const char *name, PyType_Spec *spec) {
  PyObject *type = PyType_FromSpec(spec);
  int done = type == NULL ? -1 : PyModule_AddObjectRef(module, name, type);
  Py_XDECREF(type);
  return done;
}

static int fill(PyObject *module) {
  int done = add(module, "Columns", &codec_columns_spec);
  return done < 0 ? done : add(module, "Answers", &codec_answers_spec);
}

static PyMethodDef methods[] = {
  {"masked", codec_masked, METH_O, NULL},
  {"payload", codec_payload, METH_O, NULL},
  {NULL, NULL, 0, NULL},
};

static PyModuleDef_Slot slots[] = {
  {Py_mod_exec, (void *)fill},
  {0, NULL},
};

static struct PyModuleDef definition = {
  PyModuleDef_HEAD_INIT, "_codec", NULL, 0, methods, slots, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit__codec(void); /* for compilers that ask for it */

PyMODINIT_FUNC PyInit__codec(void) {
  return PyModuleDef_Init(&definition);
}
