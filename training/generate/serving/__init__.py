"""One model behind an address with OpenAI's interface: what may be asked, which model answers, what it adds."""
