/* An answer from a socket: waited for, read and unpacked in one call. */
#include "codec.h"

#include <errno.h>
#include <limits.h>
#include <poll.h>
#include <sys/socket.h>

enum { READ = 16384 }; /* bytes that are read at once: an answer has a few hundred */

/* What comes within so many milliseconds; less than 0 with errno, EAGAIN for nothing. */
static ssize_t heard(int file, int wait, unsigned char *data) {
  struct pollfd one = {.fd = file, .events = POLLIN};
  int ready = poll(&one, 1, wait);
  if (ready == 0) {
    errno = EAGAIN;
  }
  return ready > 0 ? recv(file, data, READ, MSG_DONTWAIT) : -1;
}

/* receive(file, wait): what a socket brings next, and an answer as that where it comes alone and
 * whole; else its bytes, none at its end. None for nothing within so many milliseconds. */
PyObject *codec_receive(PyObject *own, PyObject *const *given, Py_ssize_t count) {
  if (count != 2) {
    PyErr_SetString(PyExc_TypeError, "receive(file: int, wait: int)");
    return NULL;
  }
  long file = PyLong_AsLong(given[0]), wait = PyLong_AsLong(given[1]);
  if (PyErr_Occurred()) {
    return NULL;
  }
  unsigned char data[READ];
  PyThreadState *state = PyEval_SaveThread();
  ssize_t size = heard((int)file, wait > INT_MAX ? INT_MAX : (int)wait, data);
  int error = errno;
  PyEval_RestoreThread(state);
  if (size < 0) {
    if (error == EAGAIN || (error == EINTR && PyErr_CheckSignals() == 0)) {
      return Py_NewRef(Py_None);
    }
    errno = error;
    return error == EINTR ? NULL : PyErr_SetFromErrno(PyExc_OSError);
  }
  struct frame found;
  PyObject *made = NULL;
  if (codec_find(data, size, 0, &found) && !found.masked && found.end == size) {
    Py_ssize_t payload = size - found.begin;
    if (codec_read_answer(own, data + found.begin, payload, &made) != DECLINED) {
      return made;
    }
  }
  return PyBytes_FromStringAndSize((char *)data, size);
}
