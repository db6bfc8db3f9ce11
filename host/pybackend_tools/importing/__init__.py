"""``pybackend import``: turns the files of a framework into an entry of a model repository.

Steps: :mod:`detection` finds out by the content what a file or directory is; :mod:`entry` lays the files out beside the
repository; a server loads them, and :mod:`trial` asks it for the completed configuration and sends sample requests;
:mod:`run` writes the configuration, the sample and a test; :mod:`verification` compares the served answers with
those of the framework. None of this is needed to serve an entry.
"""
