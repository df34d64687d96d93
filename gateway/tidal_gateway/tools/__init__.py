"""Calls of tools: the formats in which models write them, their grammars, and the parser that reads them."""
