"""The stage `reward`: a model that scores answers."""
