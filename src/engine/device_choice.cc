#include "engine/device_choice.h"

#include "base/error.h"
#include "base/log.h"
#include "engine/drafter_choice.h"
#include "engine/loaded_model.h"
#include "runtime/upload.h"

namespace atom {

Device choose_device(const ModelOptions& o, const ModelFiles& files, const Checkpoint* checkpoint,
                     Device wanted) {
  if (wanted.kind == Device::cpu) return wanted;
  const std::string problem = gpu_problem(files, checkpoint, wanted);
  if (problem.empty()) return wanted;
  if (o.device != "auto") throw invalid("--device {}: {}; use --device cpu", o.device, problem);
  log_warning("{}: runs on the CPU, not on the GPU: {}", files.root.string(), problem);
  return {};
}

std::string gpu_problem(const ModelFiles& files, const Checkpoint* checkpoint, Device gpu) {
  const ModelDeclaration declaration(files, {}, gpu);
  if (!declaration.tables().lacking.empty()) return declaration.tables().lacking;
  return upload_problem(declaration.tables(), checkpoint);
}

}  // namespace atom
