// Drives the batcher by a script on its standard input, or at random: `host LIBRARY [SEED ROUNDS]`.
//
// A line is a command and its arguments with tabs between; every line is answered by one:
//   model JSON                         load a model with this config: what was logged, or the error
//   begin | end                        Triton's initialize and finalize of a batch
//   ask NAME [KIND:NAME:VALUE]...      whether the batch takes the request of that name; it lies where it lay before.
//                                      KIND is int, double, bool, text or none of a parameter; tensor (sizes with x
//                                      between) or bytes (sizes, +, and bytes) of an input
//   forget NAME                        free the request's memory
//   sleep MS | unload
#include "host.hpp"

#include <dlfcn.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <memory>
#include <sstream>
#include <thread>

namespace host {

std::vector<std::string> logged;
long errors_alive = 0;
unsigned fail_every = 0;

namespace {

unsigned calls = 0;

TRITONSERVER_Error* failure() {
    return fail_every && ++calls % fail_every == 0 ? TRITONSERVER_ErrorNew(TRITONSERVER_ERROR_INTERNAL, "on demand")
                                                   : nullptr;
}

template <typename Function>
void find(void* library, const char* name, Function& function) {
    function = reinterpret_cast<Function>(dlsym(library, name));
    if (!function) std::cerr << "no " << name << "\n", std::exit(2);
}

std::vector<std::string> split(const std::string& text, char by) {
    std::vector<std::string> parts;
    std::istringstream from(text);
    for (std::string part; std::getline(from, part, by);) parts.push_back(part);
    return parts;
}

void describe(TRITONBACKEND_Request& request, const std::string& what) {
    const auto first = what.find(':'), second = what.find(':', first + 1);
    const std::string kind = what.substr(0, first), name = what.substr(first + 1, second - first - 1),
                      value = what.substr(second + 1);
    if (kind == "tensor" || kind == "bytes") {
        TRITONBACKEND_Input& input = request.inputs[name];
        const auto plus = value.find('+');
        for (const std::string& size : split(value.substr(0, plus), 'x')) input.shape.push_back(std::stoll(size));
        input.type = kind == "bytes" ? TRITONSERVER_TYPE_BYTES : static_cast<TRITONSERVER_DataType>(9);
        if (plus != std::string::npos) input.bytes = std::stoull(value.substr(plus + 1));
        return;
    }
    TRITONBACKEND_Request::Parameter made{name, TRITONSERVER_PARAMETER_STRING, {}};
    if (kind == "int") made.type = TRITONSERVER_PARAMETER_INT, made.value = std::int64_t{std::stoll(value)};
    if (kind == "double") made.type = TRITONSERVER_PARAMETER_DOUBLE, made.value = std::stod(value);
    if (kind == "bool") made.type = TRITONSERVER_PARAMETER_BOOL, made.value = value == "true";
    if (kind == "text") made.value = value;
    request.parameters.push_back(made);
}

std::string answer(TRITONSERVER_Error* error) {
    if (!error) return "ok";
    const std::string said = "error " + std::to_string(error->code) + " " + error->message;
    TRITONSERVER_ErrorDelete(error);
    return said;
}

int run_script(const Library& library) {
    std::unique_ptr<TRITONBACKEND_Model> model;
    TRITONBACKEND_Batcher* batcher = nullptr;
    void* state = nullptr;
    std::map<std::string, std::unique_ptr<TRITONBACKEND_Request>> requests;
    for (std::string line; std::getline(std::cin, line);) {
        const std::vector<std::string> words = split(line, '\t');
        const std::string& command = words.at(0);
        if (command == "model") {
            logged.clear();
            model.reset(new TRITONBACKEND_Model{"m", words.at(1)});
            const std::string said = answer(library.batcher_initialize(&batcher, model.get()));
            std::cout << said << (logged.empty() ? "" : " " + logged.back()) << "\n";
        } else if (command == "begin") {
            std::cout << answer(library.batch_initialize(batcher, &state)) << "\n";
        } else if (command == "end") {
            std::cout << answer(library.batch_finalize(state)) << "\n";
            state = nullptr;
        } else if (command == "ask") {
            auto& request = requests[words.at(1)];
            if (!request) {
                request = std::make_unique<TRITONBACKEND_Request>();
                for (std::size_t word = 2; word < words.size(); ++word) describe(*request, words[word]);
            }
            bool included = false;
            const std::string said = answer(library.include(request.get(), state, &included));
            std::cout << (said != "ok" ? said : included ? "yes" : "no") << "\n";
        } else if (command == "forget") {
            std::cout << (requests.erase(words.at(1)) ? "ok" : "error") << "\n";
        } else if (command == "sleep") {
            std::this_thread::sleep_for(std::chrono::milliseconds(std::stoi(words.at(1))));
            std::cout << "ok\n";
        } else if (command == "unload") {
            std::cout << answer(library.batcher_finalize(batcher)) << "\n";
            batcher = nullptr;
        } else {
            std::cerr << "unknown command: " << line << "\n";
            return 2;
        }
    }
    if (batcher) answer(library.batcher_finalize(batcher));
    return errors_alive == 0 ? 0 : 3;
}

}  // namespace

Library::Library(const char* path) {
    void* const opened = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!opened) std::cerr << dlerror() << "\n", std::exit(2);
    find(opened, "TRITONBACKEND_ModelBatcherInitialize", batcher_initialize);
    find(opened, "TRITONBACKEND_ModelBatcherFinalize", batcher_finalize);
    find(opened, "TRITONBACKEND_ModelBatchInitialize", batch_initialize);
    find(opened, "TRITONBACKEND_ModelBatchFinalize", batch_finalize);
    find(opened, "TRITONBACKEND_ModelBatchIncludeRequest", include);
}

}  // namespace host

// ---- what tritonserver exports

TRITONSERVER_Error* TRITONSERVER_ErrorNew(TRITONSERVER_Error_Code code, const char* message) {
    ++host::errors_alive;
    return new TRITONSERVER_Error{code, message};
}

void TRITONSERVER_ErrorDelete(TRITONSERVER_Error* error) {
    --host::errors_alive;
    delete error;
}

const char* TRITONSERVER_ErrorMessage(TRITONSERVER_Error* error) { return error->message.c_str(); }

TRITONSERVER_Error* TRITONSERVER_LogMessage(TRITONSERVER_LogLevel level, const char*, int, const char* message) {
    host::logged.push_back((level == TRITONSERVER_LOG_WARN ? "warning: " : "info: ") + std::string(message));
    return host::failure();
}

TRITONSERVER_Error* TRITONSERVER_MessageSerializeToJson(TRITONSERVER_Message* message, const char** base,
                                                        std::size_t* bytes) {
    *base = message->text.data();
    *bytes = message->text.size();
    return host::failure();
}

TRITONSERVER_Error* TRITONSERVER_MessageDelete(TRITONSERVER_Message* message) {
    delete message;
    return host::failure();
}

TRITONSERVER_Error* TRITONBACKEND_ModelName(TRITONBACKEND_Model* model, const char** name) {
    if (TRITONSERVER_Error* error = host::failure()) return error;
    *name = model->name.c_str();
    return nullptr;
}

TRITONSERVER_Error* TRITONBACKEND_ModelConfig(TRITONBACKEND_Model* model, std::uint32_t version,
                                              TRITONSERVER_Message** config) {
    if (version != 1) return TRITONSERVER_ErrorNew(TRITONSERVER_ERROR_INVALID_ARG, "the config has version 1");
    if (TRITONSERVER_Error* error = host::failure()) return error;
    *config = new TRITONSERVER_Message{model->config};
    return nullptr;
}

TRITONSERVER_Error* TRITONBACKEND_RequestParameterCount(TRITONBACKEND_Request* request, std::uint32_t* count) {
    if (TRITONSERVER_Error* error = host::failure()) return error;
    *count = static_cast<std::uint32_t>(request->parameters.size());
    return nullptr;
}

TRITONSERVER_Error* TRITONBACKEND_RequestParameter(TRITONBACKEND_Request* request, std::uint32_t index,
                                                   const char** name, TRITONSERVER_ParameterType* type,
                                                   const void** value) {
    if (TRITONSERVER_Error* error = host::failure()) return error;
    if (index >= request->parameters.size())
        return TRITONSERVER_ErrorNew(TRITONSERVER_ERROR_INVALID_ARG, "there are not so many parameters");
    const auto& parameter = request->parameters[index];
    *name = parameter.name.c_str();
    *type = parameter.type;
    *value = nullptr;
    if (const auto* text = std::get_if<std::string>(&parameter.value)) *value = text->c_str();
    if (const auto* whole = std::get_if<std::int64_t>(&parameter.value)) *value = whole;
    if (const auto* yes = std::get_if<bool>(&parameter.value)) *value = yes;
    if (const auto* number = std::get_if<double>(&parameter.value)) *value = number;
    return nullptr;
}

TRITONSERVER_Error* TRITONBACKEND_RequestInput(TRITONBACKEND_Request* request, const char* name,
                                               TRITONBACKEND_Input** input) {
    *input = nullptr;
    if (TRITONSERVER_Error* error = host::failure()) return error;
    const auto found = request->inputs.find(name);
    if (found == request->inputs.end())
        return TRITONSERVER_ErrorNew(TRITONSERVER_ERROR_INVALID_ARG, "there is no such input");
    *input = &found->second;
    return nullptr;
}

TRITONSERVER_Error* TRITONBACKEND_InputProperties(TRITONBACKEND_Input* input, const char** name,
                                                  TRITONSERVER_DataType* type, const std::int64_t** shape,
                                                  std::uint32_t* dimensions, std::uint64_t* bytes,
                                                  std::uint32_t* buffers) {
    if (TRITONSERVER_Error* error = host::failure()) return error;
    if (name) *name = "";
    if (type) *type = input->type;
    if (shape) *shape = input->shape.data();
    if (dimensions) *dimensions = static_cast<std::uint32_t>(input->shape.size());
    if (bytes) *bytes = input->bytes;
    if (buffers) *buffers = 1;
    return nullptr;
}

int main(int count, char** arguments) {
    const host::Library library(arguments[1]);
    if (count == 2) return host::run_script(library);
    return host::fuzz(library, static_cast<unsigned>(std::stoul(arguments[2])), std::stoi(arguments[3]));
}
