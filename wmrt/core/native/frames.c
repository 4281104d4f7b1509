/* Frames of a WebSocket that are whole binary messages. */
#include "codec.h"

#include <errno.h>
#include <sys/random.h>

/* The frame that begins at `at`, if it is a whole binary message and all of it is there. */
bool codec_find(const unsigned char *data, Py_ssize_t size, Py_ssize_t at, struct frame *found) {
  if (at < 0 || size - at < 2 || data[at] != WHOLE_BINARY) {
    return false;
  }
  unsigned second = data[at + 1], bytes = 0; /* of the length, where the second byte has no room */
  uint64_t payload = second & 0x7F;
  Py_ssize_t begin = at + 2;
  if (payload >= 126) {
    bytes = payload == 126 ? 2 : 8;
    if (size - begin < (Py_ssize_t)bytes) {
      return false;
    }
    payload = 0;
    for (unsigned i = 0; i < bytes; i++) {
      payload = payload << 8 | data[begin + i];
    }
    begin += bytes;
  }
  found->masked = (second & MASKED) != 0;
  if (found->masked) {
    begin += KEY_BYTES;
  }
  if (begin > size || payload > (uint64_t)(size - begin)) {
    return false;
  }
  found->begin = begin;
  found->end = begin + (Py_ssize_t)payload;
  return true;
}

/* What precedes the payload, HEAD_BYTES at most; its length. */
Py_ssize_t codec_head(unsigned char *out, Py_ssize_t size, unsigned mask) {
  int bytes = size < 126 ? 0 : size < 65536 ? 2 : 8;
  out[0] = WHOLE_BINARY;
  out[1] = (unsigned char)(mask | (bytes == 0 ? (unsigned)size : bytes == 2 ? 126u : 127u));
  for (int i = 0; i < bytes; i++) {
    out[2 + i] = (unsigned char)((uint64_t)size >> (8 * (bytes - 1 - i)));
  }
  return 2 + bytes;
}

/* `data` with its bytes masked or unmasked. */
void codec_mask(unsigned char *out, const unsigned char *data, Py_ssize_t size,
                const unsigned char *key) {
  uint32_t one;
  memcpy(&one, key, KEY_BYTES);
  uint64_t twice = (uint64_t)one << 32 | one, word;
  Py_ssize_t i = 0;
  for (; size - i >= 8; i += 8) {
    memcpy(&word, data + i, 8);
    word ^= twice;
    memcpy(out + i, &word, 8);
  }
  for (; i < size; i++) {
    out[i] = data[i] ^ key[i & 3];
  }
}

/* masked(data): a whole binary message as a client sends it. */
PyObject *codec_masked(PyObject *module, PyObject *data) {
  (void)module;
  char *bytes;
  Py_ssize_t size;
  if (PyBytes_AsStringAndSize(data, &bytes, &size) < 0) {
    return NULL;
  }
  unsigned char head[HEAD_BYTES + KEY_BYTES];
  Py_ssize_t begin = codec_head(head, size, MASKED);
  if (getrandom(head + begin, KEY_BYTES, 0) != KEY_BYTES) {
    return PyErr_SetFromErrno(PyExc_OSError);
  }
  if (size > PY_SSIZE_T_MAX - HEAD_BYTES - KEY_BYTES) {
    return PyErr_NoMemory();
  }
  PyObject *made = PyBytes_FromStringAndSize(NULL, begin + KEY_BYTES + size);
  if (made != NULL) {
    unsigned char *out = (unsigned char *)PyBytes_AsString(made);
    memcpy(out, head, (size_t)(begin + KEY_BYTES));
    codec_mask(out + begin + KEY_BYTES, (unsigned char *)bytes, size, head + begin);
  }
  return made;
}

/* payload(data): of the one frame of a server that `data` is; None for anything else. */
PyObject *codec_payload(PyObject *module, PyObject *data) {
  (void)module;
  char *bytes;
  Py_ssize_t size;
  struct frame found;
  if (PyBytes_AsStringAndSize(data, &bytes, &size) < 0) {
    return NULL;
  }
  if (codec_find((unsigned char *)bytes, size, 0, &found) && !found.masked && found.end == size) {
    return PyBytes_FromStringAndSize(bytes + found.begin, size - found.begin);
  }
  return Py_NewRef(Py_None);
}
