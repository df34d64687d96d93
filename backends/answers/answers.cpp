// The request path's work per request and per batch: texts of requests, scores of classes, Triton's tensors of an
// answer; tidal/answers/library.py describes them. What a function does not handle, its caller does in Python.
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <cmath>
#include <cstring>

namespace {

// A reference that is released at the end of its scope.
class Owned {
 public:
  explicit Owned(PyObject* object) : object_(object) {}
  Owned(const Owned&) = delete;
  Owned& operator=(const Owned&) = delete;
  ~Owned() { Py_XDECREF(object_); }
  PyObject* get() const { return object_; }
  PyObject* release() {
    PyObject* object = object_;
    object_ = nullptr;
    return object;
  }
  explicit operator bool() const { return object_ != nullptr; }

 private:
  PyObject* object_;
};

// A contiguous view of an array's memory; empty if the array has no such view.
class View {
 public:
  View(PyObject* array, int flags) : valid_(PyObject_GetBuffer(array, &buffer_, flags) == 0) {
    if (!valid_) PyErr_Clear();
  }
  View(const View&) = delete;
  View& operator=(const View&) = delete;
  ~View() {
    if (valid_) PyBuffer_Release(&buffer_);
  }
  explicit operator bool() const { return valid_; }
  const Py_buffer* operator->() const { return &buffer_; }
  bool is(char format) const { return buffer_.format != nullptr && buffer_.format[0] == format && !buffer_.format[1]; }

 private:
  Py_buffer buffer_;
  bool valid_;
};

constexpr int kReadable = PyBUF_C_CONTIGUOUS | PyBUF_FORMAT;
constexpr Py_ssize_t kObject = sizeof(PyObject*);
// Longest label whose tensor is kept.
constexpr Py_ssize_t kMaxBytes = 256;
constexpr Py_ssize_t kMaxTensors = 256;

PyObject* text_dtype = nullptr;

// Softmax of a row and the index of its largest logit; -1 for a row with NaN or without a finite largest logit.
Py_ssize_t score_row(const float* logits, float* probabilities, Py_ssize_t classes) {
  Py_ssize_t best = 0;
  for (Py_ssize_t i = 0; i < classes; ++i) {
    if (std::isnan(logits[i])) return -1;
    if (logits[i] > logits[best]) best = i;
  }
  if (!std::isfinite(logits[best])) return -1;
  float sum = 0;
  for (Py_ssize_t i = 0; i < classes; ++i) {
    probabilities[i] = std::exp(logits[i] - logits[best]);
    sum += probabilities[i];
  }
  for (Py_ssize_t i = 0; i < classes; ++i) probabilities[i] /= sum;
  return best;
}

// class_scores(logits, probabilities, best, labels) -> bool
PyObject* class_scores(PyObject*, PyObject* const* args, Py_ssize_t count) {
  if (count != 4) {
    PyErr_SetString(PyExc_TypeError, "class_scores takes logits, probabilities, best and labels");
    return nullptr;
  }
  View logits(args[0], kReadable), probabilities(args[1], kReadable | PyBUF_WRITABLE);
  View best(args[2], kReadable | PyBUF_WRITABLE), names(args[3], kReadable);
  if (!logits || !probabilities || !best || !names) Py_RETURN_FALSE;
  if (!logits.is('f') || !probabilities.is('f') || !best.is('O') || !names.is('O')) Py_RETURN_FALSE;
  if (logits->ndim != 2 || probabilities->len != logits->len) Py_RETURN_FALSE;
  const Py_ssize_t rows = logits->shape[0], classes = logits->shape[1];
  if (classes < 1 || names->len != classes * kObject || best->len != rows * kObject) Py_RETURN_FALSE;
  const float* from = static_cast<const float*>(logits->buf);
  float* to = static_cast<float*>(probabilities->buf);
  PyObject** labels = static_cast<PyObject**>(best->buf);
  for (Py_ssize_t row = 0; row < rows; ++row) {
    const Py_ssize_t index = score_row(from + row * classes, to + row * classes, classes);
    if (index < 0) Py_RETURN_FALSE;
    PyObject* label = static_cast<PyObject* const*>(names->buf)[index];
    PyObject* before = labels[row];
    Py_INCREF(label);
    labels[row] = label;
    Py_XDECREF(before);
  }
  Py_RETURN_TRUE;
}

// The value of an array of one label or one integer, as a new reference; null without an error for any other array.
PyObject* single_value(const View& array) {
  if (array->format == nullptr || array->len != array->itemsize) return nullptr;
  if (array.is('i')) return PyLong_FromLong(*static_cast<const int*>(array->buf));
  if (array.is('l')) return PyLong_FromLong(*static_cast<const long*>(array->buf));
  if (!array.is('O')) return nullptr;
  PyObject* value = *static_cast<PyObject* const*>(array->buf);
  if (value == nullptr || !PyBytes_CheckExact(value) || PyBytes_GET_SIZE(value) > kMaxBytes) return nullptr;
  Py_INCREF(value);
  return value;
}

PyObject* create_tensor(PyObject* create, PyObject* name, PyObject* array) {
  PyObject* args[] = {name, array};
  return PyObject_Vectorcall(create, args, 2, nullptr);
}

// A shared tensor with the value of an array, or a new one if the array is not a single label or integer.
PyObject* reused_tensor(PyObject* cache, PyObject* create, PyObject* name, PyObject* array, const View& view) {
  Owned value(single_value(view));
  if (!value) return PyErr_Occurred() ? nullptr : create_tensor(create, name, array);
  Owned axes(PyLong_FromLong(view->ndim));
  if (!axes) return nullptr;
  Owned key(PyTuple_Pack(3, name, axes.get(), value.get()));
  if (!key) return nullptr;
  PyObject* known = PyDict_GetItemWithError(cache, key.get());
  if (known != nullptr || PyErr_Occurred()) {
    Py_XINCREF(known);
    return known;
  }
  if (PyDict_GET_SIZE(cache) >= kMaxTensors) PyDict_Clear(cache);
  // A copy: the values of a slice would keep the arrays of its whole batch.
  Owned copied(PyObject_CallMethod(array, "copy", nullptr));
  if (!copied) return nullptr;
  Owned tensor(create_tensor(create, name, copied.get()));
  if (!tensor || PyDict_SetItem(cache, key.get(), tensor.get()) < 0) return nullptr;
  return tensor.release();
}

// tensors(outputs, wanted, types, rows, create, cache) -> list | None
PyObject* tensors(PyObject*, PyObject* const* args, Py_ssize_t count) {
  if (count != 6 || !PyDict_Check(args[0]) || !PyDict_Check(args[2])) {
    PyErr_SetString(PyExc_TypeError, "tensors takes outputs, wanted, types, rows, create and cache");
    return nullptr;
  }
  PyObject *outputs = args[0], *types = args[2], *create = args[4], *cache = args[5];
  const Py_ssize_t rows = PyLong_AsSsize_t(args[3]);
  if (rows == -1 && PyErr_Occurred()) return nullptr;
  Owned names(PyObject_GetIter(args[1]));
  Owned found(PyList_New(0));
  if (!names || !found) return nullptr;
  while (PyObject* next = PyIter_Next(names.get())) {
    Owned name(next);
    PyObject* array = PyDict_GetItemWithError(outputs, name.get());
    PyObject* type = PyDict_GetItemWithError(types, name.get());
    if (array == nullptr || type == nullptr) {
      if (PyErr_Occurred()) return nullptr;
      Py_RETURN_NONE;
    }
    Owned dtype(PyObject_GetAttr(array, text_dtype));
    View view(array, kReadable);
    if (!dtype) PyErr_Clear();
    if (dtype.get() != type || !view || (rows >= 0 && (view->ndim < 1 || view->shape[0] != rows))) Py_RETURN_NONE;
    Owned tensor(PyDict_Check(cache) ? reused_tensor(cache, create, name.get(), array, view)
                                     : create_tensor(create, name.get(), array));
    if (!tensor || PyList_Append(found.get(), tensor.get()) < 0) return nullptr;
  }
  if (PyErr_Occurred()) return nullptr;
  return found.release();
}

// Whether a text has a character other than white space.
bool has_words(PyObject* text) {
  const Py_ssize_t length = PyUnicode_GET_LENGTH(text);
  const int kind = PyUnicode_KIND(text);
  const void* data = PyUnicode_DATA(text);
  for (Py_ssize_t i = 0; i < length; ++i) {
    if (!Py_UNICODE_ISSPACE(PyUnicode_READ(kind, data, i))) return true;
  }
  return false;
}

// texts(columns, max_bytes) -> list | None
PyObject* texts(PyObject*, PyObject* const* args, Py_ssize_t count) {
  if (count != 2 || !PyList_Check(args[0])) {
    PyErr_SetString(PyExc_TypeError, "texts takes a list of columns and a number of bytes");
    return nullptr;
  }
  Py_ssize_t left = PyLong_AsSsize_t(args[1]);
  if (left == -1 && PyErr_Occurred()) return nullptr;
  Owned found(PyList_New(0));
  if (!found) return nullptr;
  for (Py_ssize_t index = 0; index < PyList_GET_SIZE(args[0]); ++index) {
    View column(PyList_GET_ITEM(args[0], index), kReadable);
    if (!column || !column.is('O') || column->ndim != 2 || column->shape[1] != 1) Py_RETURN_NONE;
    PyObject* const* rows = static_cast<PyObject* const*>(column->buf);
    for (Py_ssize_t row = 0; row < column->shape[0]; ++row) {
      PyObject* bytes = rows[row];
      if (bytes == nullptr || !PyBytes_CheckExact(bytes)) Py_RETURN_NONE;
      left -= PyBytes_GET_SIZE(bytes);
      if (left < 0) Py_RETURN_NONE;
      Owned text(PyUnicode_DecodeUTF8(PyBytes_AS_STRING(bytes), PyBytes_GET_SIZE(bytes), "strict"));
      if (!text) {
        if (!PyErr_ExceptionMatches(PyExc_UnicodeDecodeError)) return nullptr;
        PyErr_Clear();
        Py_RETURN_NONE;
      }
      if (!has_words(text.get())) Py_RETURN_NONE;
      if (PyList_Append(found.get(), text.get()) < 0) return nullptr;
    }
  }
  return found.release();
}

PyMethodDef functions[] = {
    {"class_scores", reinterpret_cast<PyCFunction>(reinterpret_cast<void*>(class_scores)), METH_FASTCALL,
     "Fill probabilities and most likely labels of float32 logits; False if they are to be computed otherwise."},
    {"tensors", reinterpret_cast<PyCFunction>(reinterpret_cast<void*>(tensors)), METH_FASTCALL,
     "Create the tensors of an answer; None if an output needs a check or a copy."},
    {"texts", reinterpret_cast<PyCFunction>(reinterpret_cast<void*>(texts)), METH_FASTCALL,
     "Decode columns of texts; None if one is refused or has to be shortened."},
    {nullptr, nullptr, 0, nullptr},
};

PyModuleDef module = {PyModuleDef_HEAD_INIT, "tidal_answers", nullptr, -1, functions, nullptr, nullptr, nullptr, nullptr};

}  // namespace

PyMODINIT_FUNC PyInit_tidal_answers() {
  text_dtype = PyUnicode_InternFromString("dtype");
  return text_dtype == nullptr ? nullptr : PyModule_Create(&module);
}
