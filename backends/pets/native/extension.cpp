// What OpenVINO finds in this library.
#include "openvino/core/extension.hpp"
#include "openvino/core/op_extension.hpp"
#include "operations.hpp"

OPENVINO_CREATE_EXTENSIONS(std::vector<ov::Extension::Ptr>({
    std::make_shared<ov::OpExtension<tidal::TaskLinear>>(),
    std::make_shared<ov::OpExtension<tidal::TaskLinearNorm>>(),
    std::make_shared<ov::OpExtension<tidal::TaskNorm>>(),
    std::make_shared<ov::OpExtension<tidal::RowAttention>>(),
}))
