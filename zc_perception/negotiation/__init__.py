"""Who can agree on what, before the first frame: constraints in, one buffer setting out.

Read :mod:`~zc_perception.negotiation.session` first: how a camera and its consumers agree.
:mod:`~zc_perception.negotiation.agreement` chooses. :mod:`~zc_perception.negotiation.constraints`
is what each of them asks for, :mod:`~zc_perception.negotiation.settings` what comes out.
"""
