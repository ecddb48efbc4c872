export const CopyEdited = () => null;
