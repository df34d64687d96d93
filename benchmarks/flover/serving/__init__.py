"""What Flover is compared with, each as a decoupled model of Triton's Python backend that streams its tokens."""
