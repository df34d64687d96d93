// The Triton API that the batcher sees, implemented by a test: models and requests with any content.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <variant>
#include <vector>

#include "triton_api.h"

// Triton's types, as this host has them.
struct TRITONSERVER_Error {
    TRITONSERVER_Error_Code code;
    std::string message;
};
struct TRITONSERVER_Message {
    std::string text;
};
struct TRITONBACKEND_Input {
    TRITONSERVER_DataType type = TRITONSERVER_TYPE_INVALID;
    std::vector<std::int64_t> shape;
    std::uint64_t bytes = 0;
};
struct TRITONBACKEND_Request {
    struct Parameter {
        std::string name;
        TRITONSERVER_ParameterType type;
        std::variant<std::monostate, std::string, std::int64_t, bool, double> value;  // nothing: no value is given
    };
    std::vector<Parameter> parameters;
    std::map<std::string, TRITONBACKEND_Input> inputs;
};
struct TRITONBACKEND_Model {
    std::string name, config;
};

namespace host {

extern std::vector<std::string> logged;
extern long errors_alive;          // made and not deleted yet
extern unsigned fail_every;        // each so-manyth call of Triton's API fails; 0: none

// The library's functions.
struct Library {
    TRITONSERVER_Error* (*batcher_initialize)(TRITONBACKEND_Batcher**, TRITONBACKEND_Model*);
    TRITONSERVER_Error* (*batcher_finalize)(TRITONBACKEND_Batcher*);
    TRITONSERVER_Error* (*batch_initialize)(const TRITONBACKEND_Batcher*, void**);
    TRITONSERVER_Error* (*batch_finalize)(void*);
    TRITONSERVER_Error* (*include)(TRITONBACKEND_Request*, void*, bool*);

    explicit Library(const char* path);  // ends the process where it cannot be loaded
};

// Run random configs, requests and orders of calls; returns how many rounds broke a rule.
int fuzz(const Library& library, unsigned seed, int rounds);

}  // namespace host
