"""Chat: messages become a prompt by the model's own chat template; imports jinja2 and no other part of the system."""

from tidal.flover.chat.messages import read_messages, read_tools
from tidal.flover.chat.template import CHAT_FILE, ChatFormat, ChatTemplate, load_chat_template

__all__ = ["CHAT_FILE", "ChatFormat", "ChatTemplate", "load_chat_template", "read_messages", "read_tools"]
