"""The PET inference engine as a TensorRT plan, for the dense kinds: banks of terms and row numbers are its inputs."""
