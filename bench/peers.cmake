# Included by llama.cpp's own project() call (CMAKE_PROJECT_llama.cpp_INCLUDE).
#
# Many small files with the same headers, a dozen at a time: a fraction of the work, the same code.
# The `llama` library's architectures are compiled so in the wheel too; the image models of `mtmd` are
# linked by the server and never run here. ggml, which holds the kernels, is compiled as it comes.
function(compile_small_files_together)
  set_target_properties(llama PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 12)
  file(GLOB image_models "${CMAKE_CURRENT_SOURCE_DIR}/tools/mtmd/models/*.cpp")
  set(number 0)
  foreach(source IN LISTS image_models)
    math(EXPR group "${number} / 12")
    math(EXPR number "${number} + 1")
    set_source_files_properties("${source}" TARGET_DIRECTORY mtmd PROPERTIES UNITY_GROUP "models${group}")
  endforeach()
  set_target_properties(mtmd PROPERTIES UNITY_BUILD ON UNITY_BUILD_MODE GROUP)
endfunction()
cmake_language(DEFER CALL compile_small_files_together)
