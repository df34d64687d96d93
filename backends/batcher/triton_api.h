// The part of Triton's C API that the batcher uses, with Triton's names and values. No package that Tidal installs
// contains Triton's headers.
#pragma once

#include <cstddef>
#include <cstdint>

extern "C" {

struct TRITONSERVER_Error;
struct TRITONSERVER_Message;
struct TRITONBACKEND_Model;
struct TRITONBACKEND_Batcher;
struct TRITONBACKEND_Request;
struct TRITONBACKEND_Input;

enum TRITONSERVER_Error_Code : int { TRITONSERVER_ERROR_INTERNAL = 1, TRITONSERVER_ERROR_INVALID_ARG = 3 };

enum TRITONSERVER_LogLevel : int { TRITONSERVER_LOG_INFO = 0, TRITONSERVER_LOG_WARN = 1 };

enum TRITONSERVER_ParameterType : int {
    TRITONSERVER_PARAMETER_STRING = 0,
    TRITONSERVER_PARAMETER_INT = 1,
    TRITONSERVER_PARAMETER_BOOL = 2,
    TRITONSERVER_PARAMETER_DOUBLE = 3,
    TRITONSERVER_PARAMETER_BYTES = 4,
};

enum TRITONSERVER_DataType : int { TRITONSERVER_TYPE_INVALID = 0, TRITONSERVER_TYPE_BYTES = 13 };

// Every function returns null, or an error that the caller must delete.
TRITONSERVER_Error* TRITONSERVER_ErrorNew(TRITONSERVER_Error_Code code, const char* message);
void TRITONSERVER_ErrorDelete(TRITONSERVER_Error* error);
const char* TRITONSERVER_ErrorMessage(TRITONSERVER_Error* error);
TRITONSERVER_Error* TRITONSERVER_LogMessage(TRITONSERVER_LogLevel level, const char* file, int line,
                                            const char* message);
TRITONSERVER_Error* TRITONSERVER_MessageSerializeToJson(TRITONSERVER_Message* message, const char** base,
                                                        std::size_t* bytes);
TRITONSERVER_Error* TRITONSERVER_MessageDelete(TRITONSERVER_Message* message);

TRITONSERVER_Error* TRITONBACKEND_ModelName(TRITONBACKEND_Model* model, const char** name);
TRITONSERVER_Error* TRITONBACKEND_ModelConfig(TRITONBACKEND_Model* model, std::uint32_t config_version,
                                              TRITONSERVER_Message** config);

// The value of a parameter is a null-terminated string, int64_t, bool or double.
TRITONSERVER_Error* TRITONBACKEND_RequestParameterCount(TRITONBACKEND_Request* request, std::uint32_t* count);
TRITONSERVER_Error* TRITONBACKEND_RequestParameter(TRITONBACKEND_Request* request, std::uint32_t index,
                                                   const char** name, TRITONSERVER_ParameterType* type,
                                                   const void** value);
TRITONSERVER_Error* TRITONBACKEND_RequestInput(TRITONBACKEND_Request* request, const char* name,
                                               TRITONBACKEND_Input** input);
// The shape starts with the batch dimension if the model has one.
TRITONSERVER_Error* TRITONBACKEND_InputProperties(TRITONBACKEND_Input* input, const char** name,
                                                  TRITONSERVER_DataType* type, const std::int64_t** shape,
                                                  std::uint32_t* dimensions, std::uint64_t* bytes,
                                                  std::uint32_t* buffers);
}
